// What every page has. Each page works without it.
import { inZone } from "./times.js";

inZone(document);
