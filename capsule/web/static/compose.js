// A text that is being written is kept until the server says that it has it, and is sent once, under its id.
//
// It belongs to a form with `data-draft`, which names the place that the text is for. What is kept: the texts of the
// form, its id, and, once it was sent, what was sent: the same is sent again until an answer comes. A tab holds a lock of
// the browser on what it keeps, so that two tabs at one place have a draft each; a draft that no tab holds any more is
// shown by the next tab that comes to its place.
const AGAIN_MS = 1000, SLOWEST_MS = 15000;
const RELEASE_MS = 500; // In which a page that is loaded anew gets the locks of the one before.
const { store, me } = document.body.dataset;
const held = new Map(); // The forms of this page, by the names of the drafts that they keep.

function fresh() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function stored(name) {
  try {
    return JSON.parse(localStorage.getItem(name));
  } catch {
    return null;
  }
}

/** The names of the drafts for a place, the newest first. */
function kept(place) {
  const names = Object.keys(localStorage).filter((name) => name.startsWith(`${store} draft `));
  const drafts = names.map((name) => ({ name, ...stored(name) }));
  return drafts.filter((each) => each.place === place).sort((a, b) => b.at - a.at).map((each) => each.name);
}

/** Hold a draft for a form until the page is closed. False: another tab or another form holds it. */
function hold(name, form) {
  if (held.has(name) || !navigator.locks) {
    const isFree = !held.get(name)?.isConnected;
    if (isFree) held.set(name, form);
    return isFree;
  }
  return new Promise((resolve) => {
    const keep = () => {
      held.set(name, form);
      resolve(true);
      return new Promise(() => {});
    };
    navigator.locks.request(name, { signal: AbortSignal.timeout(RELEASE_MS) }, keep).catch(() => resolve(false));
  });
}

function compose(form) {
  const { content, id, seen } = form.elements;
  const texts = [...form.querySelectorAll("textarea, input:not([type=hidden], [type=radio])")];
  const button = form.querySelector("button"), label = button.textContent;
  const line = form.querySelector(".said");
  const place = `${me} ${form.dataset.draft}`;
  let draft = null, name = "", isUnderWay = false, came = 0, wait = AGAIN_MS, again;

  const isTyped = () => texts.some((each) => each.value !== each.defaultValue);

  function note() {
    if (!name) hold((name = `${store} draft ${fresh()}`), form);
    draft ??= { place, id: id?.value };
    draft.at = Date.now();
    draft.texts = texts.map((each) => each.value);
  }

  function keep() {
    if (!name) return;
    try {
      if (draft) localStorage.setItem(name, JSON.stringify(draft));
      else localStorage.removeItem(name);
    } catch {
      say("This text is too large to be kept by the browser");
    }
  }

  function say(text) {
    line.textContent = text;
  }

  /** Let the text be changed, or not while what became of it is unknown. */
  function open(isOpen) {
    for (const each of texts) each.readOnly = !isOpen;
    button.disabled = isUnderWay;
    form.setAttribute("aria-busy", String(!isOpen));
  }

  function rows() {
    if (form.dataset.conversation) content.rows = Math.min(20, Math.max(2, content.value.split("\n").length + 1));
  }

  /** Note the last message that the page shows by now. */
  function look() {
    for (const { id, dataset } of document.querySelectorAll("#messages [data-at]")) {
      if (+dataset.at <= +seen.dataset.at) continue;
      seen.value = dataset.id ?? id.slice(2);
      seen.dataset.at = dataset.at;
    }
  }

  async function send() {
    if (isUnderWay) return;
    clearTimeout(again);
    if (seen?.value) look();
    if (!draft) note();
    draft.sent ??= new URLSearchParams(new FormData(form)).toString();
    keep();
    isUnderWay = true;
    open(false);
    say("Sending");
    const headers = { accept: "application/json", "content-type": "application/x-www-form-urlencoded", "capsule-store": store };
    const answer = await fetch(form.action, { method: "POST", headers, body: draft.sent }).catch(() => null);
    const text = await answer?.text().catch(() => undefined);
    isUnderWay = false;
    if (text === undefined || answer.status === 503) {
      open(false);
      say("Not sent yet: there is no answer. It is sent again until there is one");
      again = setTimeout(send, wait);
      wait = Math.min(2 * wait, SLOWEST_MS);
      return;
    }
    wait = AGAIN_MS;
    const isJson = (answer.headers.get("content-type") || "").startsWith("application/json");
    const said = isJson ? JSON.parse(text) : { error: text };
    if (answer.ok) sent(said);
    else refused(said);
  }

  function sent(said) {
    draft = null;
    keep();
    say("Sent");
    const event = new CustomEvent("capsule:sent", { detail: said, bubbles: true, cancelable: true });
    const isElsewhere = !form.dataset.conversation || form.elements.parent || form.elements.reply_to;
    if (isElsewhere || form.dispatchEvent(event)) return location.assign(said.location);
    // The page shows it by itself.
    content.value = "";
    button.textContent = label;
    came = 0;
    renew();
    rows();
    seen.value = said.id;
    open(true);
  }

  function refused({ error, kind }) {
    delete draft.sent;
    if (kind === "Meanwhile") {
      seen.value = "";
      button.textContent = "Send anyway";
    }
    // Nothing was written under the id, or another text was.
    if (kind === "InvalidInput" && id?.hasAttribute("data-renew")) renew();
    keep();
    open(true);
    texts.at(-1).focus();
    say(`Not sent: ${error}`);
  }

  function renew() {
    id.value = fresh();
    if (draft) draft.id = id.value;
  }

  form.addEventListener("input", ({ target }) => {
    if (!texts.includes(target)) return;
    if (isTyped()) note();
    else draft = null;
    keep();
    rows();
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  addEventListener("online", () => draft?.sent && form.isConnected && send());
  document.addEventListener("capsule:change", ({ detail }) => {
    if (detail.id !== form.dataset.conversation || detail.kind !== "appended" || !draft || draft.sent) return;
    came += detail.messages.length;
    seen.value = detail.messages.at(-1);
    button.textContent = "Send anyway";
    say(`${came} ${came === 1 ? "message" : "messages"} came while you wrote`);
  });

  /** Show a draft that is kept for this place, if no other tab has it and nothing is typed yet. */
  async function restore() {
    for (const each of kept(place)) {
      if (draft || !(await hold(each, form))) continue;
      const found = stored(each); // It may have been sent in the wait.
      if (draft || found?.texts.length !== texts.length) continue;
      [name, draft] = [each, found];
      texts.forEach((text, at) => (text.value = found.texts[at]));
      if (id && found.id) id.value = found.id;
      rows();
      if (draft.sent) send();
      else say("Kept from before: not sent yet");
    }
  }
  restore();
}

/** Keep what is typed in the forms below a node. */
export const bind = (node) => node.querySelectorAll("form[data-draft]").forEach(compose);

bind(document);

// Any other form is sent once, however often one clicks.
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (event.defaultPrevented || form.method !== "post") return;
  if (form.dataset.isSent) event.preventDefault();
  else form.dataset.isSent = "yes";
});
addEventListener("pageshow", () => document.querySelectorAll("form").forEach((form) => delete form.dataset.isSent));
