// Puts the sections of a report below its timeline.

const report = JSON.parse(document.getElementById("report").textContent);
fillReportHead(report);
addTime(report);
addMemory(report);
addLoss(report);
addStages(report);
addComparison(report);
addAbout(report);
if (location.hash === "#reporttest") {
  let result;
  try {
    result = testReport(app, report);
  } catch (error) {
    result = { errors: [String(error && error.stack || error)] };
  }
  document.documentElement.dataset.stagecraft = JSON.stringify(result);
}
