// Learning: the plan in force and the one before, policies, the last runs of the pipeline and audits.

import { get } from "../api.js";
import { h, put } from "../dom.js";
import { clock, count, many } from "../format.js";
import { planPicture } from "./plans.js";
import { PolledView, table } from "./polled.js";

/** The view at #/learning. */
export class LearningView extends PolledView {
  constructor() {
    super("Learning", 8000);
    this.plans = []; // as they came while this page was open
  }

  async read() {
    const [learning, plan, before] = await Promise.all([get("learning"), get("plan"), get("plan", { version: "before" })]);
    return { learning, plan, before };
  }

  reset() {
    super.reset();
    this.plans = [];
  }

  draw({ learning, plan, before }) {
    const version = learning.plan?.version ?? 0;
    if (!this.plans.length && plan.features.length && before.features.length) this.plans = [{ version: null, features: before.features }];
    if (plan.features.length && this.plans.at(-1)?.version !== version) this.plans = [...this.plans, { version, features: plan.features }].slice(-2);
    put(this.tools, learning.plan ? h("span.pill.accent", `plan ${version} · ${count(learning.plan.leaves)} leaves`) : h("span.pill", "no plan"));
    put(this.body,
      h("section", h("h2", this.plans.length > 1 ? "The plan before, and now" : "The plan"),
        this.plans.length ? h("div.columns", this.plans.map((one) => h("figure.card.pad", planPicture(one.features), h("figcaption.dim", `${one.version === null ? "The plan before" : one.version ? `Plan ${one.version}` : "The plan of the last run"}: ${count(one.features.length)} leaves`))))
          : h("p.empty", "No plan is in force: every node serves everything. nearcast pipeline run makes one from the event log, nearcast nodes --plan shares it.")),
      h("section", h("h2", "Policies for retained messages"),
        table([["File", "grow"], ["Topics", "right"]], learning.policies.map((one) => [h("span", h("code.wrap", one.file), h("div.dim.small", one.topics.slice(0, 5).join("  "))), h("span.num", count(one.topic_count))]), "No policy: retained messages are sent at once."),
        Object.keys(learning.groups).length ? h("div.tags", Object.entries(learning.groups).map(([name, number]) => h("span.pill", `${name}: ${many(number, "group")} of topics`))) : null),
      h("section", h("h2", "Runs of the pipeline"),
        learning.runs.length ? learning.runs.map((run) => h("details.card.pad", h("summary", h("code", run.folder), h("span.dim", `  ${when(run.at)} · ${run.steps.length} steps`)),
          table([["Step", ""], ["Result", "grow"]], run.steps.map((step) => [step.name ?? "–", h("span.dim", short(step.summary ?? step))]), "No steps.")))
          : h("p.empty", "No report of a run is in the data directory.")),
      h("section", h("h2", "Audits"), table([["Folder", ""], ["When", ""], ["Found", "grow"]], learning.audits.map((one) => [h("code", one.folder), when(one.at), h("span.dim", short(one.summary))]), "No audit yet: nearcast pipeline audit says whether a message was lost, doubled or late.")));
  }
}

const when = (at) => `${new Date(at).toLocaleDateString("en-GB")} ${clock(at)}`;
const short = (summary) => Object.entries(summary).filter(([, value]) => ["number", "string", "boolean"].includes(typeof value)).map(([name, value]) => `${name.replaceAll("_", " ")} ${typeof value === "number" ? count(value) : value}`).join(" · ").slice(0, 400);
