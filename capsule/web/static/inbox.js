// The number of unread messages beside the word Inbox, where an agent was chosen.
import { part } from "./part.js";

const AFTER_MS = 300;
const count = document.getElementById("unread");
let isDue = false;

if (count) document.addEventListener("capsule:change", ({ detail }) => {
  if (isDue || !detail.messages) return;
  isDue = true;
  setTimeout(async () => {
    isDue = false;
    const drawn = await part("/inbox", "count").catch(() => null);
    if (drawn) count.replaceChildren(...drawn.childNodes);
  }, AFTER_MS);
});
