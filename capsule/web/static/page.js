// What every page has. Each page works without it.
import "./compose.js";
import "./drop.js";
import { inZone } from "./times.js";

inZone(document);
