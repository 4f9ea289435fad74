// Lists and searches: what fits is shown as one types, the next page when one comes to the end, and in the list what
// changes meanwhile. What is shown is what the server draws, and its address is kept.
import { bind } from "./compose.js";
import { part } from "./part.js";

const BEFORE_MS = 25, BETWEEN_MS = 1000;
const found = () => document.querySelector("#found[data-part]");
const form = document.getElementById(found()?.dataset.form);
let running;

/** Draw what an address shows in the place of what was found, if it is still wanted. A request before is given up. */
async function show(address, isWanted = () => true) {
  running?.abort();
  running = new AbortController();
  const { signal } = running;
  const [old, chosen, known] = [found(), document.activeElement?.closest(".list > li")?.id, [...changed]];
  const drawn = (await part(address, old.dataset.part, signal)).querySelector("#found");
  if (!drawn || signal.aborted) return;
  if (!isWanted()) return tell();
  for (const id of known) changed.delete(id);
  document.getElementById("news")?.replaceChildren();
  found().replaceWith(drawn);
  bind(drawn);
  if (chosen) document.querySelector(`#${CSS.escape(chosen)} a`)?.focus({ preventScroll: true });
  follow();
}

const quietly = (promise) => promise.catch((error) => {
  if (error.name !== "AbortError" && !(error instanceof TypeError)) throw error; // A TypeError: no connection.
});

/** Add the next page when its link comes into view. */
function follow() {
  const link = found().querySelector("a[rel=next]");
  if (!link) return;
  const observer = new IntersectionObserver(async (entries) => {
    if (!entries.at(-1).isIntersecting) return; // Several may come at once, the oldest first.
    observer.disconnect();
    const more = await quietly(part(link.href, found().dataset.part));
    if (!more?.querySelector("#list") || !link.isConnected) return; // The link stays, and can be clicked.
    document.getElementById("list").append(...more.querySelectorAll("#list > li"));
    const next = more.querySelector("a[rel=next]");
    if (next) link.replaceWith(next);
    else link.parentElement.remove();
    follow();
  }, { rootMargin: "600px" });
  observer.observe(link);
}

/** Draw the menus anew, whose counts depend on what was chosen. */
async function recount(address, name) {
  const drawn = (await part(address, "facets")).querySelector("#facets");
  if (drawn) document.getElementById("facets").replaceWith(drawn);
  form.elements[name]?.focus?.();
}

let typed;
function edited({ target }) {
  if (target.form !== form) return;
  clearTimeout(typed);
  typed = setTimeout(() => {
    const address = new URL(form.action);
    for (const [name, value] of new FormData(form)) if (value) address.searchParams.append(name, value);
    history.replaceState(null, "", address);
    quietly(show(address).then(() => {
      document.getElementById("said").textContent = found().querySelector(".about, .error").textContent.trim();
    }));
    if (target.matches("select, [type=checkbox]") && form.querySelector("#facets")) quietly(recount(address, target.name));
  }, BEFORE_MS);
}

if (form) document.addEventListener("input", edited);
if (found()) follow();

// What changes moves up at once when the top of the list is in view; else a line says how many did.
const changed = new Set();
let isDue = false, last = 0;

function renew(isWanted) {
  last = Date.now();
  quietly(show(location.href, isWanted));
}

/** Whether the top of the list is in view, and nothing is typed in it. */
function isAtRest() {
  return scrollY < 100 && ![...found().querySelectorAll("input:not([type=hidden])")].some((input) => input.value);
}

function tell() {
  isDue = false;
  if (!changed.size) return;
  if (isAtRest()) return renew(isAtRest);
  const button = document.createElement("button");
  button.textContent = `${changed.size} changed`;
  button.onclick = () => {
    scrollTo(0, 0);
    renew();
  };
  document.getElementById("news").replaceChildren(button);
}

if (found()?.dataset.live !== undefined && !new URLSearchParams(location.search).has("cursor")) {
  document.addEventListener("capsule:change", ({ detail }) => {
    changed.add(detail.id);
    if (isDue) return;
    isDue = true;
    setTimeout(tell, Math.max(BEFORE_MS, last + BETWEEN_MS - Date.now()));
  });
}
