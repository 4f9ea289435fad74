// Gives every request of a program that knows no tokens one: CAPSULE_TOKEN. `Installed.command` passes files to --import.
import http from "node:http";
import { Agent, setGlobalDispatcher } from "undici";

const token = `Bearer ${process.env.CAPSULE_TOKEN}`;

const given = (headers) =>
  Array.isArray(headers) ? [...headers, "authorization", token] : { ...headers, authorization: token };

// What `fetch` and undici use, and what `node:http` does.
setGlobalDispatcher(
  new Agent().compose((dispatch) => (options, handler) =>
    dispatch({ ...options, headers: given(options.headers ?? {}) }, handler),
  ),
);
const request = http.request;
http.request = (options, ...more) => request({ ...options, headers: given(options.headers ?? {}) }, ...more);
