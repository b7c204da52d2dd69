import { h } from "./dom.js";

export const load = (around) => around.ask("jobs");

export function draw({ jobs }) {
  return [h("h1", {}, "Jobs"), jobs.map((job) => h("p", { id: job.id }, `${job.id}: ${job.state}`))];
}
