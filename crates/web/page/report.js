// ---- The report: what the program writes with --report, in the page and as a file.

const MEASURED = 256;

/** HTML, of what is open and of what was made of it, with the steps as this page times them. */
async function report() {
  const networks = made ? ["full", "reduced"] : ["full"], request = { smaller: Boolean(made), microseconds: [] };
  if (opened.not_streamed === null) {
    const silence = new ArrayBuffer(4 * MEASURED * (opened.width ?? 1));
    const { microseconds } = await ask({ time: { which: networks, steps: MEASURED } }, [silence]);
    request.microseconds = microseconds;
  }
  const { bytes } = await call({ request: { report: request } });
  return new Blob([bytes], { type: "text/html" });
}
const reportName = () => (made ? made.output : source.name).replace(/\.index\.json$/, "").replace(/\.[^.]*$/, ".html");

/** The report below the model, made anew when that changed. */
async function look() {
  unlook();
  await task("making the report", "reported", async () => {
    // In the page's own policy; a frame has no address that could lead anywhere.
    $("view").srcdoc = await (await report()).text();
    $("view").hidden = false;
  });
}
function unlook() {
  $("view").hidden = true;
  $("view").removeAttribute("srcdoc");
}
const saveReport = () => task("making the report", "saved", async () => download(await report(), reportName()));

$("look").ontoggle = () => ($("look").open ? look() : unlook());
$("save-report").onclick = saveReport;
