// Stages, what other schedules would have taken, and how the run was made.

// What a stage takes for a microbatch, forward and backward.
function stageTime(stage) {
  return ["F", "I", "W", "B"].reduce((sum, type) => sum + (stage[type] ? stage[type].mean : 0), 0);
}

function addStages(report) {
  const { stages } = report;
  const section = addSection("stages", "Stages",
    "Mean time of a microbatch, waiting excluded, and bytes sent to other ranks during the step. Load: forward and backward together, against the mean of all stages.");
  const types = ["F", "I", "W", "B"].filter((type) => stages.some((stage) => stage[type]));
  const names = { F: "Forward", I: "Backward, inputs", W: "Backward, weights", B: "Backward" };
  const times = columnText(kTimeUnits, stages.flatMap((stage) => types.map((type) => stage[type]?.mean)));
  const weights = columnText(kByteUnits, stages.map((stage) => stage.parameter_bytes));
  const sent = columnText(kByteUnits, stages.flatMap((stage) => [stage.activations_sent, stage.gradients_sent]));
  const mean = stages.reduce((sum, stage) => sum + stageTime(stage), 0) / Math.max(1, stages.length);
  const timed = (type) => (stage) => {
    const time = stage[type];
    if (!time) return null;
    const cell = make("span", times.text(time.mean));
    cell.dataset.time = type;
    cell.addEventListener("pointermove", (event) => showHint(event, `Stage ${stage.stage}: ${names[type]}`,
      [["microbatches", numberText(time.count)], ["mean", timeText(time.mean)], ["median", timeText(time.median)], ["least", timeText(time.least)], ["most", timeText(time.most)]]));
    cell.addEventListener("pointerleave", hideHint);
    return cell;
  };
  addTable(section, [
    { title: "Stage", text: true, cell: (stage) => String(stage.stage) },
    ...(stages.some((stage) => stage.name) ? [{ title: "Name", text: true, wrap: true, cell: (stage) => stage.name }] : []),
    { title: "Rank", cell: (stage) => String(stage.rank) },
    { title: "Parameters", cell: (stage) => numberText(stage.parameters) },
    { title: "Parameters", unit: weights.unit, cell: (stage) => weights.text(stage.parameter_bytes) },
    ...types.map((type) => ({ title: names[type], unit: times.unit, cell: timed(type) })),
    { title: "Load", cell: (stage) => (mean > 0 ? signedPercent(stageTime(stage) / mean - 1) : null) },
    { title: "Activations sent", unit: sent.unit, cell: (stage) => sent.text(stage.activations_sent) },
    { title: "Gradients sent", unit: sent.unit, cell: (stage) => sent.text(stage.gradients_sent) },
  ], stages);
}

function addComparison(report) {
  const { schedules, unfit, assumptions } = report.comparison;
  const section = addSection("comparison", "Other schedules",
    schedules.length > 0 ? "An estimate: what each schedule would take with the costs that this step measured." : "");
  if (schedules.length > 0) {
    const own = schedules.find((one) => one.is_this_run);
    const slowest = Math.max(report.step.makespan, ...schedules.map((one) => one.makespan)) || 1;
    const times = columnText(kTimeUnits, [slowest]);
    const memory = columnText(kByteUnits, schedules.map((one) => one.peak_memory));
    const hasMemory = schedules.some((one) => one.peak_memory > 0);
    const ran = { schedule: `${report.schedule.name}, as it ran`, makespan: report.step.makespan, ran: true,
                  bubble_share: 1 - report.step.compute_share,
                  peak_memory: Math.max(0, ...report.ranks.map((rank) => rank.memory.recorded_peak || 0)) };
    const bar = (one) => {
      const stack = make("div", undefined, "stack"), piece = make("i");
      piece.style.width = `${(100 * one.makespan) / slowest}%`;
      piece.style.background = one.ran || one.is_this_run ? "var(--compute)" : "var(--startUp)";
      stack.append(piece);
      return stack;
    };
    addTable(section, [
      { title: "Schedule", text: true, cell: (one) => one.schedule + (one.is_this_run ? " (this one)" : "") },
      { title: "Stages a rank", cell: (one) => (one.ran ? null : String(one.stages_per_rank || "uneven")) },
      { title: "", className: "bars", cell: bar },
      { title: "Step", unit: times.unit, cell: (one) => times.text(one.makespan) },
      { title: own ? "Against this one" : "Against the run", cell: (one) => (one.ran && own ? null : signedPercent(one.makespan / ((own || ran).makespan || 1) - 1)) },
      { title: "Without compute", unit: "of all ranks' time", cell: (one) => percentText(one.bubble_share) },
      ...(hasMemory ? [{ title: "Peak memory", unit: memory.unit, cell: (one) => (one.peak_memory > 0 ? memory.text(one.peak_memory) : null) }] : []),
    ], [ran, ...schedules], (one) => (one.is_this_run ? "this" : ""));
  }
  const list = (items) => {
    const notes = make("ul", undefined, "notes");
    for (const item of items) notes.append(make("li", item));
    section.append(notes);
  };
  if (assumptions.length > 0) list(assumptions);
  if (unfit.length > 0) {
    const note = make("p", "These do not fit:", "note");
    note.style.marginTop = "12px";
    section.append(note);
    list(unfit.map((one) => `${one.schedule}, ${plural(one.stages_per_rank, "stage")} a rank: ${one.reason}`));
  }
}

function addAbout(report) {
  if (!report.command && report.facts.length === 0) return;
  const section = addSection("about", "How it was made");
  if (report.command) section.append(make("pre", report.command));
  const facts = make("dl", undefined, "facts");
  for (const { name, value } of report.facts) facts.append(make("dt", name), make("dd", value));
  section.append(facts);
}
