import { h } from "./dom.js";

export const load = async () => ({});

export const draw = () => [h("h1", {}, "Time")];
