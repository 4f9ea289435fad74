// The search of a site. The index comes as a script (`search.js`) when somebody searches: a page from the disk may load nothing else.
(() => {
  const box = document.querySelector("#search");
  if (!box) return;
  const [rows, found, status] = ["all", "found", "status"].map(id => document.getElementById(id));
  // Words are folded as `capsule/transfer/site.py` does.
  const alone = "\\u0e00-\\u109f\\u1780-\\u17ff\\u3040-\\u30ff\\u3400-\\u9fff\\u{20000}-\\u{3ffff}";
  const word = new RegExp(`[${alone}]|(?:(?![${alone}])[\\p{L}\\p{N}])+`, "gu");
  const fold = text => text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase().match(word) || [];
  const signs = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  let index;
  const mark = (marks, steps, bit) => {
    let at = 0, step = 0, shift = 0;
    for (const sign of steps) {
      const digit = signs.indexOf(sign);
      step += (digit & 31) << shift;
      shift += 5;
      if (digit < 32) { marks[at += step] |= bit; step = shift = 0; }
    }
  };
  const link = (href, text) => Object.assign(document.createElement("a"), { href, textContent: text });
  const search = () => {
    const asked = [...new Set(fold(box.value).map(each => each.slice(0, 40)))].slice(0, 30);
    rows.hidden = asked.length > 0;
    found.replaceChildren();
    status.textContent = "";
    if (!asked.length) return;
    const { starts, words, places } = index, all = 2 ** asked.length - 1, marks = new Uint32Array(starts.at(-1));
    asked.forEach((each, nth) => words.forEach((one, at) => one.startsWith(each) && mark(marks, places[at], 1 << nth)));
    const hits = [];
    for (let nth = 0; nth + 1 < starts.length; nth++) {
      const own = marks.subarray(starts[nth], starts[nth + 1]), said = [];
      if (own.reduce((sum, each) => sum | each, 0) !== all) continue;
      own.forEach((each, at) => each === all && at && said.push(at - 1));
      hits.push([nth, said, said.length || own[0] === all]);
    }
    hits.sort((one, other) => !one[2] - !other[2]);
    for (const [nth, said] of hits.slice(0, 100)) {
      const row = rows.children[nth].cloneNode(true), page = row.querySelector("a").getAttribute("href");
      const line = Object.assign(document.createElement("p"), { className: "said" });
      line.append(...said.slice(0, 5).map(at => link(`${page}#m-${at}`, `message ${at + 1}`)));
      if (said.length > 5) line.append(`and ${said.length - 5} more`);
      row.append(line);
      found.append(row);
    }
    status.textContent = `${hits.length} conversation${hits.length === 1 ? "" : "s"}${hits.length > 100 ? ", of which the first 100 are here" : ""}`;
  };
  const ask = () => {
    if (window.capsuleIndex) {
      const { starts, words, places } = window.capsuleIndex;
      index ||= { starts, words: words.split(" "), places: places.split(" ") };
      search();
    } else if (box.value && !document.querySelector("[src='search.js']")) {
      document.head.append(Object.assign(document.createElement("script"), { src: "search.js", onload: ask }));
    }
  };
  box.form.hidden = false;
  box.form.addEventListener("submit", event => event.preventDefault());
  box.addEventListener("input", ask);
  addEventListener("pageshow", ask);
})();
