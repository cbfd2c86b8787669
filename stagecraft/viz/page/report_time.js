// The head of a report, and where the time of each rank went.

const kCauses = [
  { key: "compute", name: "Compute", color: "var(--compute)", meaning: "forward and backward, waiting excluded" },
  { key: "start_up", name: "Start-up", color: "var(--startUp)", meaning: "bubble: waiting ahead of the first compute" },
  { key: "waiting_for_activations", name: "For activations", color: "var(--forActivations)", meaning: "bubble: activations were not sent yet" },
  { key: "waiting_for_gradients", name: "For gradients", color: "var(--forGradients)", meaning: "bubble: gradients were not sent yet" },
  { key: "exposed_activations", name: "Exposed, activations", color: "var(--exposedActivations)", meaning: "activations were under way" },
  { key: "exposed_gradients", name: "Exposed, gradients", color: "var(--exposedGradients)", meaning: "gradients were under way" },
  { key: "waiting_for_weights", name: "For weights", color: "var(--forWeights)", meaning: "weights of a sharded stage were not there yet" },
  { key: "other", name: "Other", color: "var(--otherTime)", meaning: "sends, waits for sends and reductions, bookkeeping, waiting for a core" },
  { key: "run_out", name: "Run-out", color: "var(--runOut)", meaning: "bubble: after the last action" },
];

function fillReportHead(report) {
  const { schedule, step, plan } = report;
  // Lanes of a good height, but never more than fits a screen.
  document.getElementById("timeline").style.height = `clamp(300px, ${150 + 118 * schedule.ranks}px, max(420px, 60vh))`;
  document.getElementById("subtitle").textContent = [schedule.name, plural(schedule.ranks, "rank"), plural(schedule.stages, "stage"),
    plural(schedule.microbatches, "microbatch", "microbatches")].join(" · ");
  const figures = document.getElementById("figures");
  const add = (name, value, small, hint) => {
    const entry = make("div");
    if (hint) entry.title = hint;
    const number = make("dd", value);
    if (small) number.append(make("small", small));
    entry.append(make("dt", name), number);
    figures.append(entry);
  };
  add("step", timeText(step.makespan), plan ? `plan ${timeText(plan.makespan)}` : "", "From the start of the step to the end of its last action");
  add("bubble", percentText(step.bubble_share), "", "Share of all ranks' time spent waiting for what was not sent yet, or after the last action");
  add("exposed transfer", percentText(step.exposed_transfer_share), "", "Share of all ranks' time spent waiting for what was under way");
  const peaks = report.ranks.map((rank) => rank.memory.recorded_peak).filter((peak) => peak !== null);
  if (peaks.length > 0) add("peak memory", memoryText(Math.max(...peaks)), "", "The most that any rank held, parameters and gradients included");
  for (const { name, value } of report.figures) add(name, value);
  const failure = document.getElementById("failure");
  if (report.failure || schedule.not_run > 0) {
    const missing = schedule.not_run > 0 ? `${numberText(schedule.not_run)} of ${numberText(schedule.actions)} actions did not run. ` : "";
    failure.textContent = `The step did not complete. ${missing}${report.failure}`.trim();
    failure.hidden = false;
  }
  document.getElementById("timelineNote").textContent =
    `${plan ? plan.note + " " : ""}Zoom with Ctrl and the wheel, or after a click with the wheel alone; ? lists the keys.`;
}

// A rank whose times are those of a device: what the host did meanwhile.
function deviceNote(rank) {
  const parts = [`Rank ${rank.rank}: times of the device.`];
  if (rank.is_replayed) parts.push("The step was one launch.");
  if (rank.host) {
    const { compute, late, launch_bound } = rank.host;
    parts.push(`The host took ${timeText(compute)} to launch the compute${late > 0 ? ` and was late by ${timeText(late)}` : ""}.`);
    if (launch_bound > 0) parts.push(`Launching took as long as computing for ${timeText(launch_bound)} of the compute.`);
  }
  if (rank.device_memory) {
    const { peak_allocated, reserved } = rank.device_memory;
    parts.push(`Memory of the device: peak ${memoryText(peak_allocated)} allocated, ${memoryText(reserved)} reserved.`);
  }
  return parts.join(" ");
}

function addTime(report) {
  const section = addSection("time", "Where the time went",
    "Each rank's time from the start of the step to its end. Bubble is start-up, waiting for what another rank had not sent yet, and run-out; " +
    "exposed is waiting for what was under way.");
  addKey(section, kCauses);
  const makespan = report.step.makespan || 1;
  const stack = (rank) => {
    const bar = make("div", undefined, "stack");
    for (const cause of kCauses) {
      if (!(rank[cause.key] > 0)) continue;
      const piece = make("i");
      piece.style.width = `${(100 * rank[cause.key]) / makespan}%`;
      piece.style.background = cause.color;
      piece.dataset.cause = cause.key;
      piece.addEventListener("pointermove", (event) => showHint(event, `Rank ${rank.rank}: ${cause.name}`,
        [[cause.meaning, ""], ["time", timeText(rank[cause.key])], ["of the step", percentText(rank[cause.key] / makespan)]]));
      piece.addEventListener("pointerleave", hideHint);
      bar.append(piece);
    }
    return bar;
  };
  const numbers = columnText(kTimeUnits, [makespan]);
  const mean = { rank: "mean", isMean: true, bubble: 0 };
  for (const { key } of [...kCauses, { key: "bubble" }]) {
    mean[key] = report.ranks.reduce((sum, rank) => sum + rank[key], 0) / Math.max(1, report.ranks.length);
  }
  const column = (title, get) => ({ title, unit: numbers.unit, cell: (rank) => numbers.text(get(rank)) });
  addTable(section, [
    { title: "Rank", text: true, cell: (rank) => String(rank.rank) },
    { title: "", className: "bars", cell: (rank) => (rank.isMean ? "" : stack(rank)) },
    column("Compute", (rank) => rank.compute),
    column("Start-up", (rank) => rank.start_up),
    column("For activations", (rank) => rank.waiting_for_activations),
    column("For gradients", (rank) => rank.waiting_for_gradients),
    column("Run-out", (rank) => rank.run_out),
    column("Exposed", (rank) => rank.exposed_activations + rank.exposed_gradients),
    ...(report.ranks.some((rank) => rank.waiting_for_weights > 0) ? [column("For weights", (rank) => rank.waiting_for_weights)] : []),
    column("Other", (rank) => rank.other),
    { title: "Bubble", unit: "of the step", cell: (rank) => percentText(rank.bubble / makespan) },
  ], [...report.ranks, mean], (rank) => (rank.isMean ? "total" : ""));
  const devices = report.ranks.filter((rank) => rank.clock === "device");
  if (devices.length > 0) {
    const notes = make("ul", undefined, "notes");
    for (const rank of devices) notes.append(make("li", deviceNote(rank)));
    section.append(notes);
  }
}
