// The window of messages of a conversation: it grows where one reads, and follows what is written.
//
// The windows in the page follow each other, each with the links to what is before and behind it; of these only the
// outermost are drawn. So whole windows can leave the page, and the links of those that stay lead to them again.
import { inZone } from "./times.js";

const MOST = 300, BAR = 64; // Messages in the page; pixels that the bar covers.
const list = document.getElementById("messages");
const news = document.getElementById("news");
const { id, words, chosen, cursor } = list.dataset;
const key = `capsule:seen:${id}`;
const articles = () => [...list.querySelectorAll(".window > article")];
const topOf = (node) => node.getBoundingClientRect().top;
const edge = (isLater) => (isLater ? list.lastElementChild : list.firstElementChild).querySelector(isLater ? ".later" : ".earlier");
const isComplete = () => edge(true).hasAttribute("data-end");
const isAtEnd = () => isComplete() && topOf(edge(true)) < innerHeight + BAR;
let waiting = 0, last = Promise.resolve();

/** Bring a part of the page into view, until what is drawn on the way there no longer moves it. */
function show(node, block, before) {
  node.scrollIntoView({ block });
  if (topOf(node) !== before) requestAnimationFrame(() => show(node, block, topOf(node)));
}

/** Do one thing after the other. */
const queued = (work) => (last = last.then(work).catch((error) => console.warn(error)));

async function part(href, name) {
  const address = new URL(href, location);
  address.searchParams.set("part", name);
  const answer = await fetch(address);
  if (!answer.ok) throw new Error(`${answer.status} for ${address}`);
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  inZone(page);
  return document.adoptNode(page.body.firstElementChild);
}

/** Load the window before or behind; how many messages are new. What is in view stays where it is. */
async function load(isLater) {
  const link = edge(isLater)?.querySelector("a");
  if (!link) return [];
  const fresh = await part(link.href, "messages");
  const added = [];
  const still = articles().find((each) => each.getBoundingClientRect().bottom > BAR);
  const top = still && topOf(still);
  for (const article of fresh.querySelectorAll(":scope > article")) {
    const known = document.getElementById(article.id);
    if (!known) added.push(article);
    else if (!known.matches(".window > article")) article.remove();
    else if (known.textContent === article.textContent) article.replaceWith(known);
    else known.remove();
  }
  fresh.querySelectorAll(".empty").forEach((each) => each.remove());
  if (isLater) {
    edge(true).removeAttribute("data-end");
    list.append(fresh);
  } else list.prepend(fresh);
  for (const each of [...list.children]) if (each !== fresh && !each.querySelector("article")) each.remove();
  while (list.children.length > 1 && articles().length > MOST) (isLater ? list.firstElementChild : list.lastElementChild).remove();
  if (still?.isConnected) scrollBy(0, topOf(still) - top);
  look();
  mark(fresh);
  return added;
}

/** Load what was written since, as long as there is more. */
async function follow() {
  const isFollowing = isAtEnd(), added = [];
  waiting = 0;
  do added.push(...(await load(true)));
  while (!isComplete());
  news.hidden = true;
  if (isFollowing) show(edge(true), "end");
  else if (added[0]) show(added[0], "start");
  if (added.length) document.getElementById("said").textContent = `${added.length} new message${added.length > 1 ? "s" : ""}`;
}

/** Draw messages anew that somebody changed. */
async function redraw(ids) {
  for (const each of ids) {
    const old = document.getElementById(`m-${each}`)?.closest("article");
    if (!old) continue;
    const fresh = await part(`/c/${encodeURIComponent(id)}/m/${encodeURIComponent(old.id.slice(2))}`, "messages");
    const article = fresh.querySelector(`#${CSS.escape(old.id)}`);
    if (article) old.replaceWith(article);
  }
}

async function redrawHead() {
  const head = document.getElementById("head");
  if (!head.contains(document.activeElement)) head.replaceWith(await part(location.pathname, "head"));
}

document.addEventListener("capsule:change", ({ detail }) => {
  if (detail.id !== id) return;
  const { kind, messages = [], removed = [], count } = detail;
  if (kind === "appended") {
    document.getElementById("count").textContent = `${count.toLocaleString("en")} message${count === 1 ? "" : "s"}`;
    waiting += messages.length;
    if (isAtEnd()) return queued(follow);
    news.textContent = `${waiting} new message${waiting > 1 ? "s" : ""}`;
    news.hidden = !waiting;
    return;
  }
  for (const each of removed) document.getElementById(`m-${each}`)?.remove();
  queued(() => redraw(messages));
  queued(redrawHead);
});

news.addEventListener("click", (event) => {
  if (!isComplete()) return; // The link leads to the newest messages.
  event.preventDefault();
  queued(follow);
});

/** Go to the prompt before or behind a message, or what is in view. */
function step(isNext, from) {
  const prompts = articles().filter((each) => "prompt" in each.dataset);
  const at = from ? topOf(from) : BAR;
  const to = isNext ? prompts.find((each) => topOf(each) > at + 2) : prompts.findLast((each) => topOf(each) < at - 2);
  if (to) {
    to.tabIndex = -1;
    to.focus({ preventScroll: true });
    show(to, "start");
  } else if (edge(isNext) && !(isNext && isComplete())) {
    queued(() => load(isNext)).then((added) => added?.length && step(isNext, from));
  }
}

list.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-step], .more > a");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  if (link.dataset.step) step(link.dataset.step === "next", link.closest("article"));
  else queued(link.rel === "prev" ? () => load(false) : isComplete() ? follow : () => load(true));
});

document.addEventListener("keydown", (event) => {
  if (!event.altKey || !["ArrowUp", "ArrowDown"].includes(event.key) || event.target.closest("input, textarea, select")) return;
  event.preventDefault();
  step(event.key === "ArrowDown");
});

const observer = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting || !target.isConnected) continue;
    if (target === edge(true)) {
      if (!isComplete()) queued(() => load(true));
      else if (waiting) queued(follow);
    } else if (document.getElementById("head").getBoundingClientRect().bottom < 0) queued(() => load(false)); // Else nobody could read the head.
  }
}, { rootMargin: "600px" });

function look() {
  observer.disconnect();
  for (const each of [edge(false), edge(true)]) if (each) observer.observe(each);
}

/** Mark the words that were looked for. */
function mark(node) {
  if (!words || !window.Highlight) return;
  const wanted = new RegExp(words.split(" ").map((word) => word.replace(/[^\p{L}\p{N}]/gu, "\\$&")).join("|"), "giu");
  const walker = document.createTreeWalker(node, NodeFilter.SHOW_TEXT);
  const marks = CSS.highlights.get("find") ?? new Highlight();
  while (walker.nextNode()) {
    for (const { index, 0: text } of walker.currentNode.data.matchAll(wanted)) {
      const range = new Range();
      range.setStart(walker.currentNode, index);
      range.setEnd(walker.currentNode, index + text.length);
      marks.add(range);
    }
  }
  CSS.highlights.set("find", marks);
}

/** For whoever reads as nobody: the line where one left off, by the last message that was in view. */
function leftOff() {
  if (document.body.dataset.me || !localStorage[key]) return document.getElementById("left-off");
  const [at, anchor] = localStorage[key].split(" "), all = articles();
  const place = all.findIndex((each) => each.id === anchor);
  if (place === all.length - 1 || !all.length) return null;
  const line = document.createElement("p");
  line.className = "left-off";
  if (place >= 0) {
    line.id = "left-off";
    line.textContent = "New since you were here";
    all[place + 1].before(line);
    return line;
  }
  if (+at > +all[0].dataset.at) return null;
  line.append(Object.assign(document.createElement("a"), { href: `/c/${id}/m/${anchor.slice(2)}#${anchor}`, textContent: "Go on where you left off" }));
  list.before(line);
  return null;
}

addEventListener("pagehide", () => {
  const seen = articles().findLast((each) => topOf(each) < innerHeight);
  if (seen && +seen.dataset.at >= parseInt(localStorage[key] ?? "0")) localStorage[key] = `${seen.dataset.at} ${seen.id}`;
});

const line = leftOff();
mark(list);
if (chosen) show(document.getElementById(chosen), "center");
else if (!location.hash && !cursor && !words) show(line ?? edge(true), line ? "center" : "end");
look();
