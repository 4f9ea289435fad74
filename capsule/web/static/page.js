// What every page has. Each page works without it.
import "./compose.js";
import "./drop.js";
import "./live.js";
import "./list.js";
import "./inbox.js";
import "./keys.js";
import { inZone } from "./part.js";

inZone(document);
