// The keyboard: single keys, never while one types, and never with Ctrl, Alt or Meta. They can be switched off.
// A link or button with `data-key="n"` is pressed by `n`; one in the chosen message comes first.
const KEPT = "capsule-keys";
const KEYS = [
  ["j, k", "Next and previous conversation, hit or message"],
  ["Enter", "Open it"],
  ["e", "Edit the chosen message"],
  ["n", "New conversation"],
  ["/", "Search"],
  ["i", "Inbox"],
  ["g g, G", "To the top, to the end"],
  ["g h, g i, g p, g w, g r, g o", "Go to conversations (home), inbox, people, workers, repairs, overview"],
  ["?", "Show these keys"],
];
const PLACES = { h: "/", i: "/inbox", p: "/people", w: "/workers", r: "/repairs", o: "/overview" };
const isOn = () => localStorage.getItem(KEPT) !== "off";
const items = () => [...document.querySelectorAll(".list > li, .window > article")].filter((item) => item.offsetParent);
const chosen = () => document.activeElement?.closest(".list > li, .window > article");
let dialog, isGoing = false;

/** Choose the item `by` places further; the first one that is in view if none is. */
function step(by) {
  const all = items(), at = all.indexOf(chosen());
  const seen = all.findIndex((item) => item.getBoundingClientRect().bottom > 60);
  const next = all[at < 0 ? seen : Math.min(Math.max(at + by, 0), all.length - 1)];
  if (!next) return;
  const target = next.matches("article") ? next : next.querySelector("a") ?? next;
  if (target === next) next.tabIndex = -1;
  target.focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
}

function press(key) {
  const target = chosen()?.querySelector(`[data-key="${key}"]`) ?? document.querySelector(`[data-key="${key}"]`);
  target?.click();
  return Boolean(target);
}

function open() {
  const item = chosen();
  if (document.activeElement !== item) return false; // A link opens by itself.
  item.querySelector("a[href]")?.click();
  return true;
}

function show() {
  dialog ??= make();
  dialog.querySelector("input").checked = isOn();
  dialog.showModal();
}

function make() {
  const element = (name, text = "", ...children) => {
    const made = document.createElement(name);
    made.textContent = text;
    made.append(...children);
    return made;
  };
  const box = Object.assign(element("input"), { type: "checkbox" });
  box.onchange = () => localStorage.setItem(KEPT, box.checked ? "on" : "off");
  const rows = KEYS.map(([key, does]) => element("tr", "", Object.assign(element("th", key), { scope: "row" }), element("td", does)));
  const close = element("button", "Close");
  const made = element("dialog", "", element("h2", "Keys"), element("table", "", ...rows));
  close.onclick = () => made.close();
  made.append(element("p", "", element("label", "", box, " Use these keys")), close);
  made.setAttribute("aria-label", "Keys");
  document.body.append(made);
  return made;
}

const DO = {
  j: () => step(1),
  k: () => step(-1),
  i: () => location.assign(PLACES.i),
  G: () => scrollTo(0, document.documentElement.scrollHeight),
  "/": () => document.getElementById("q").select(),
  "?": show,
  Enter: open,
};

document.addEventListener("keydown", (event) => {
  const { key, target } = event;
  const isTyping = target.closest("input:not([type=checkbox]), textarea, select, dialog, [contenteditable]");
  if (isTyping || event.ctrlKey || event.altKey || event.metaKey || event.isComposing || !isOn()) return;
  const wasGoing = isGoing;
  isGoing = !wasGoing && key === "g";
  let isDone = true;
  if (isGoing) return;
  if (wasGoing && key === "g") scrollTo(0, 0);
  else if (wasGoing && PLACES[key]) location.assign(PLACES[key]);
  else if (DO[key]) isDone = DO[key]() !== false;
  else isDone = key.length === 1 && /[a-z]/.test(key) && press(key);
  if (isDone) event.preventDefault();
});

const button = document.createElement("button");
button.textContent = "Keys";
button.className = "keys";
button.onclick = show;
document.querySelector(".top").append(button);
