// A text that is being written is kept until the server says that it has it, and is sent once, under its id.
//
// What is kept: the text, its id, and, once it was sent, what was sent: the same is sent again until an answer comes.
const AGAIN_MS = 1000, SLOWEST_MS = 15000;
const { store } = document.body.dataset;

function compose(form) {
  const { content, id, seen } = form.elements;
  const button = form.querySelector("button");
  const line = form.querySelector(".said");
  const place = `${store} ${document.body.dataset.me} ${form.dataset.conversation}`;
  let draft = kept(), isUnderWay = false, came = 0, wait = AGAIN_MS, again;

  function kept() {
    try {
      return JSON.parse(localStorage.getItem(place));
    } catch {
      return null;
    }
  }

  function keep() {
    try {
      if (draft) localStorage.setItem(place, JSON.stringify(draft));
      else localStorage.removeItem(place);
    } catch {
      say("This text is too large to be kept by the browser");
    }
  }

  function say(text) {
    line.textContent = text;
  }

  /** Let the text be changed, or not while what became of it is unknown. */
  function open(isOpen) {
    content.readOnly = !isOpen;
    button.disabled = isUnderWay;
    form.setAttribute("aria-busy", String(!isOpen));
  }

  function rows() {
    content.rows = Math.min(20, Math.max(2, content.value.split("\n").length + 1));
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
    if (seen.value) look();
    draft ??= { text: content.value, id: id.value };
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
    const isElsewhere = form.elements.parent || form.elements.reply_to;
    if (isElsewhere || form.dispatchEvent(event)) return location.assign(said.location);
    // The page shows it by itself.
    content.value = "";
    button.textContent = "Send";
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
    if (kind === "InvalidInput") renew(); // Nothing was written under the id, or another text was.
    keep();
    open(true);
    content.focus();
    say(`Not sent: ${error}`);
  }

  function renew() {
    const bytes = crypto.getRandomValues(new Uint8Array(16));
    id.value = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
    if (draft) draft.id = id.value;
  }

  content.addEventListener("input", () => {
    draft = content.value ? { text: content.value, id: id.value } : null;
    keep();
    rows();
  });
  content.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  addEventListener("online", () => draft?.sent && send());
  document.addEventListener("capsule:change", ({ detail }) => {
    if (detail.id !== form.dataset.conversation || detail.kind !== "appended" || !draft || draft.sent) return;
    came += detail.messages.length;
    seen.value = detail.messages.at(-1);
    button.textContent = "Send anyway";
    say(`${came} ${came === 1 ? "message" : "messages"} came while you wrote`);
  });

  if (draft && !content.value) {
    content.value = draft.text;
    id.value = draft.id;
    rows();
    if (draft.sent) send();
    else say("Kept from before: not sent yet");
  }
}

document.querySelectorAll("form.compose").forEach(compose);

// Any other form is sent once, however often one clicks.
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (event.defaultPrevented || form.method !== "post") return;
  if (form.dataset.isSent) event.preventDefault();
  else form.dataset.isSent = "yes";
});
addEventListener("pageshow", () => document.querySelectorAll("form").forEach((form) => delete form.dataset.isSent));
