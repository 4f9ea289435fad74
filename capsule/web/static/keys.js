// The keyboard: single keys, never while one types, and never with Ctrl, Alt or Meta. They can be switched off.
// A link or button with `data-key="n"` is pressed by `n`; one in the chosen message comes first.
const KEPT = `${document.body.dataset.store} keys`, ITEMS = ".list > li, #messages article";
const PLACES = { h: "/", i: "/inbox", p: "/people", w: "/workers", r: "/repairs", o: "/overview" };
const [dialog, box, button] = ["keys", "keys-on", "keys-button"].map((id) => document.getElementById(id));
const isOn = () => localStorage.getItem(KEPT) !== "off";
const chosen = () => document.activeElement?.closest(ITEMS);
let isGoing = false;

/** Choose the item `by` places further; the first one that is in view if none is. */
function step(by) {
  const all = [...document.querySelectorAll(ITEMS)].filter((item) => item.offsetParent);
  const seen = all.findIndex((item) => item.getBoundingClientRect().bottom > 60);
  const item = all[chosen() ? Math.min(Math.max(all.indexOf(chosen()) + by, 0), all.length - 1) : seen];
  const link = item?.matches("li") ? item.querySelector("a") : null; // Which Enter opens by itself.
  if (item && !link) item.tabIndex = -1;
  (link ?? item)?.focus({ preventScroll: true });
  item?.scrollIntoView({ block: "nearest" });
}

function press(key) {
  const target = chosen()?.querySelector(`[data-key="${key}"]`) ?? document.querySelector(`[data-key="${key}"]`);
  target?.click();
  return Boolean(target);
}

function show() {
  box.checked = isOn();
  dialog.showModal();
}

const DO = {
  j: () => step(1),
  k: () => step(-1),
  i: () => location.assign(PLACES.i),
  G: () => scrollTo(0, document.documentElement.scrollHeight),
  "/": () => document.getElementById("q").select(),
  "?": show,
};

document.addEventListener("keydown", (event) => {
  const { key, target } = event;
  const isTyping = target.closest("input:not([type=checkbox]), textarea, select, dialog, [contenteditable]");
  if (isTyping || event.ctrlKey || event.altKey || event.metaKey || event.isComposing || !isOn()) return;
  const wasGoing = isGoing;
  isGoing = !wasGoing && key === "g";
  if (isGoing) return;
  if (wasGoing && key === "g") scrollTo(0, 0);
  else if (wasGoing && PLACES[key]) location.assign(PLACES[key]);
  else if (DO[key]) DO[key]();
  else if (!/^[a-z]$/.test(key) || !press(key)) return;
  event.preventDefault();
});

button.hidden = false;
button.onclick = show;
box.onchange = () => localStorage.setItem(KEPT, box.checked ? "on" : "off");
