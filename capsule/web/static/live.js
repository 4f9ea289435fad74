// What happens in the store, as events `capsule:change` of the document; the detail is the event as the server says it.
//
// Browsers have six connections to a host, so one tab leads: it reads the stream, and tells the others. A tab goes on
// from the cursor that it has seen itself, whoever leads: it reads what it missed when it is opened or shown, and when
// the stream begins anew. A hidden tab does nothing; a tab that only listens has no timer.
const AGAIN_MS = 2000, MOST = 1000;
const { store, cursor } = document.body.dataset;
const told = new Set(); // The last events that this tab had: the stream may have what was read before.
const line = document.getElementById("lost");
let seen = cursor, isBehind = true, isReading = false, isOver = false, again;

function tell(text) {
  if (told.has(text)) return;
  told.add(text);
  if (told.size > 2 * MOST) told.delete(told.values().next().value);
  const detail = JSON.parse(text);
  seen = detail.cursor;
  document.dispatchEvent(new CustomEvent("capsule:change", { detail }));
}

/** Read what happened since this tab was up to date. */
async function catchUp() {
  isBehind = true;
  if (isReading || isOver || document.hidden) return;
  isReading = true;
  try {
    while (isBehind) {
      isBehind = false; // What is heard meanwhile sets it again.
      const answer = await fetch(`/events?wait=0&since=${encodeURIComponent(seen)}`);
      if (answer.status === 401) return end();
      if (answer.status === 400) seen = ""; // The cursor is of another visitor.
      if (!answer.ok) throw new Error(answer.statusText);
      const text = await answer.text();
      const events = [...text.matchAll(/^data: (.*)$/gm)];
      for (const [, event] of events) tell(event);
      seen = [...text.matchAll(/^id: (.*)$/gm)].pop()[1];
      isBehind ||= events.length >= MOST;
    }
    line.textContent = "";
  } catch {
    isBehind = true;
    line.textContent = "Not connected; trying again";
    clearTimeout(again);
    again = setTimeout(catchUp, AGAIN_MS);
  } finally {
    isReading = false;
  }
}

function end() {
  isOver = true;
  line.textContent = "This page is closed: it needs an address with a token again (run capsule web)";
}

/** Take what the tab that leads says: an event, that the stream is lost, or that it began or ended. */
function hear({ event, isLost }) {
  if (isLost) line.textContent ||= "Not connected; trying again";
  else if (event && !isBehind && !isReading && !document.hidden) tell(event);
  else catchUp();
}

if (navigator.locks && window.BroadcastChannel) {
  const channel = new BroadcastChannel(store);
  const say = (said) => {
    channel.postMessage(said);
    hear(said);
  };
  const lead = () => {
    const stream = new EventSource("/events");
    stream.onopen = () => say({});
    stream.onmessage = ({ data }) => say({ event: data });
    stream.onerror = () => {
      const isClosed = stream.readyState === EventSource.CLOSED; // The browser does not try again.
      say({ isLost: !isClosed });
      if (isClosed) setTimeout(() => isOver || lead(), AGAIN_MS);
    };
    return new Promise(() => {}); // It leads until it is closed.
  };
  const look = () => {
    channel.onmessage = document.hidden ? null : ({ data }) => hear(data);
    catchUp();
  };
  document.addEventListener("visibilitychange", look);
  look();
  navigator.locks.request(store, lead);
} else {
  document.addEventListener("visibilitychange", catchUp);
  catchUp();
  setInterval(() => isBehind || catchUp(), 2 * AGAIN_MS);
}
