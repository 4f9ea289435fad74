// The window of messages of a conversation: it grows where one reads, and follows what is written.
//
// The windows in the page follow each other, each with the links to what is before and behind it; of these only the
// outermost are drawn. So whole windows can leave the page, and the links of those that stay lead to them again.
import { part } from "./part.js";

const MOST = 300, BAR = 64; // Messages in the page; pixels that the bar covers.
const list = document.getElementById("messages"), news = document.getElementById("news");
const { id, words, show: chosen, cursor } = list.dataset;
const key = `${document.body.dataset.store} seen ${id}`;
const articles = () => [...list.querySelectorAll(".window > article")];
const topOf = (node) => node.getBoundingClientRect().top;
const edge = (isLater) => (isLater ? list.lastElementChild : list.firstElementChild).querySelector(isLater ? ".later" : ".earlier");
const isComplete = () => edge(true).hasAttribute("data-end");
const isAtEnd = () => isComplete() && topOf(edge(true)) < innerHeight + BAR;
const showEnd = () => show(list.parentElement, "end"); // With what covers the end of the screen: the form to write in.
const counted = (number) => `${number.toLocaleString("en")} new message${number === 1 ? "" : "s"}`;
let waiting = 0, last = Promise.resolve();

/** Do one thing after the other. */
const queued = (work) => (last = last.then(work).catch((error) => console.warn(error.message)));

/** Bring a part of the page into view, until what is drawn on the way there no longer moves it. */
function show(node, block, before) {
  for (let fold = node.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
  node.scrollIntoView({ block });
  if (topOf(node) !== before) requestAnimationFrame(() => show(node, block, topOf(node)));
}

/** Offer to go to the newest messages. */
function offer(text, isElsewhere) {
  news.textContent = text;
  news.toggleAttribute("data-elsewhere", isElsewhere);
  news.hidden = false;
}

/** Load the window before or behind, and give the messages that are new. What is in view stays where it is. */
async function load(isLater) {
  const link = edge(isLater)?.querySelector("a");
  const fresh = link && (await part(link.href, "messages")).querySelector(".window");
  if (!fresh) return offer("Go to the newest messages", true) ?? []; // Where it began was deleted.
  const still = articles().find((each) => each.getBoundingClientRect().bottom > BAR), top = still && topOf(still);
  const added = [];
  for (const article of fresh.querySelectorAll(":scope > article")) {
    const known = document.getElementById(article.id);
    if (!known) added.push(article);
    else if (!known.matches(".window > article")) article.remove();
    else if (known.textContent === article.textContent) article.replaceWith(known);
    else known.remove();
  }
  if (isLater) edge(true).removeAttribute("data-end");
  list[isLater ? "append" : "prepend"](fresh);
  for (const each of [...list.children]) if (each !== fresh && !each.querySelector("article")) each.remove();
  while (list.children.length > 1 && articles().length > MOST) list[isLater ? "firstElementChild" : "lastElementChild"].remove();
  if (still?.isConnected) scrollBy(0, topOf(still) - top);
  look();
  mark(fresh);
  return added;
}

/** Load what was written since, as long as there is more. */
async function follow() {
  const isFollowing = isAtEnd(), expected = waiting, added = [];
  news.hidden = true;
  waiting = 0;
  do added.push(...(await load(true)));
  while (!isComplete() && news.hidden);
  if (isFollowing) showEnd();
  else if (added[0]) show(added[0], "start");
  if (added.length) document.getElementById("said").textContent = counted(added.length);
  else if (expected) offer("It goes on in another branch", true);
}

/** What is drawn of a message. An id that could be no part of an address is no anchor either, and stands beside it. */
const drawn = (message) => document.getElementById(`m-${message}`) ?? articles().find((each) => each.dataset.id === message);
const idOf = (article) => article.dataset.id ?? article.id.slice(2);

/** Draw what somebody changed anew: messages, and the head. */
async function redraw(ids) {
  for (const each of ids) {
    const old = drawn(each)?.closest("article");
    const fresh = old && (await part(`/c/${encodeURIComponent(id)}/m/${encodeURIComponent(idOf(old))}`, "messages"));
    const article = fresh?.querySelector(`#${CSS.escape(old.id)}`);
    if (!article) continue;
    article.toggleAttribute("data-chosen", "chosen" in old.dataset);
    old.replaceWith(article);
  }
  const fresh = (await part(location.href, "head")).firstElementChild, head = document.getElementById("head");
  if (fresh?.id === "head" && !head.contains(document.activeElement)) head.replaceWith(fresh);
}

document.addEventListener("capsule:change", ({ detail: { id: of, kind, messages = [], removed = [], fields = [], count } }) => {
  if (of !== id) return;
  if (kind === "deleted" || kind === "damaged") return offer(`This conversation is ${kind} now`, true);
  if (kind === "appended") {
    document.getElementById("count").textContent = counted(count).replace(" new", "");
    waiting += messages.length;
    if (isAtEnd()) queued(follow);
    else if (waiting) offer(counted(waiting), false);
    return;
  }
  for (const each of removed) drawn(each)?.remove();
  if (fields.includes("current_node")) offer("Another branch is active now", true);
  queued(() => redraw(messages));
});

document.addEventListener("capsule:sent", (event) => {
  if (!isComplete()) return;
  event.preventDefault();
  showEnd();
  queued(follow);
});

news.addEventListener("click", (event) => {
  if ("elsewhere" in news.dataset || !isComplete()) return; // The link leads to the newest messages.
  event.preventDefault();
  queued(follow);
});

/** Go to the prompt before or behind a message, or what is in view. */
function step(isNext, from) {
  const prompts = articles().filter((each) => "prompt" in each.dataset), at = from ? topOf(from) : BAR;
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
  else queued(link.rel === "prev" ? () => load(false) : follow);
});

document.addEventListener("keydown", (event) => {
  if (!event.altKey || !["ArrowUp", "ArrowDown"].includes(event.key) || event.target.closest("input, textarea, select")) return;
  event.preventDefault();
  step(event.key === "ArrowDown");
});

const observer = new IntersectionObserver(near, { rootMargin: "600px" });

function near(entries) {
  const isNear = (node) => entries.some((each) => each.isIntersecting && each.target === node);
  if (isNear(edge(true)) && (waiting || !isComplete())) queued(() => load(true));
  // Not while the head is in view: else nobody could read it.
  if (isNear(edge(false)) && document.getElementById("head").getBoundingClientRect().bottom < 0) queued(() => load(false));
}

function look() {
  observer.disconnect();
  for (const each of [edge(false), edge(true)]) if (each) observer.observe(each);
}

/** Mark the words that were looked for. */
function mark(node) {
  if (!words || !window.Highlight) return;
  const wanted = new RegExp(words.split(" ").map((word) => word.replace(/[^\p{L}\p{N}]/gu, "\\$&")).join("|"), "gi");
  const walker = document.createTreeWalker(node, NodeFilter.SHOW_TEXT), marks = CSS.highlights.get("find") ?? new Highlight();
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

/** The line where one left off: the server's, for an agent; else by the last message that was in view. */
function leftOff() {
  const seen = localStorage[key], all = articles();
  if (document.body.dataset.me || !seen || !all.length) return document.getElementById("left-off");
  const [at, anchor] = seen.split(" "), next = all[all.findIndex((each) => each.id === anchor) + 1];
  const line = Object.assign(document.createElement("p"), { className: "left-off" });
  if (next && next !== all[0]) {
    line.textContent = "New since you were here";
    next.before(line);
    return line;
  }
  if (next && +at < +next.dataset.at) {
    const link = { href: `/c/${id}/m/${anchor.slice(2)}#${anchor}`, textContent: "Go on where you left off" };
    line.append(Object.assign(document.createElement("a"), link));
    list.before(line);
  }
  return null;
}

addEventListener("pagehide", () => {
  const seen = articles().findLast((each) => !each.dataset.id && topOf(each) < innerHeight);
  if (seen && +seen.dataset.at >= parseInt(localStorage[key] ?? "0")) localStorage[key] = `${seen.dataset.at} ${seen.id}`;
});

const line = leftOff();
mark(list);
if (chosen) show(document.getElementById(chosen) ?? list, "center");
else if (line) show(line, "center");
else if (!location.hash && !cursor && !words) showEnd();
look();
