// @ts-check
/**
 * The import page: how far the upload is, and what is wrong with the archive, without leaving the page.
 *
 * From:  the form, whose plain post does the same without this module.
 * To:    the address of the new set, or rows of problems.
 */

/** @typedef {{file: string, field: string, message: string, remedy: string, rule: string}} Problem */

const form = /** @type {HTMLFormElement | null} */ (document.getElementById("import"));
if (form) form.addEventListener("submit", (event) => send(event, form));

/** @param {string} id */
const at = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

/** @param {string} text */
function say(text) {
  at("import-state").textContent = text;
}

/** @param {SubmitEvent} event @param {HTMLFormElement} form */
function send(event, form) {
  event.preventDefault();
  const data = new FormData(form);
  const archive = data.get("archive");
  const limit = Number(form.dataset.limit);
  if (archive instanceof File && archive.size > limit * 1024 * 1024) {
    say(`The archive is larger than ${limit} MiB; use manage.py tasks import.`);
    return;
  }
  const progress = /** @type {HTMLProgressElement} */ (at("import-progress"));
  const button = /** @type {HTMLButtonElement} */ (form.querySelector("button"));
  const request = new XMLHttpRequest();
  request.open("POST", location.pathname);
  request.setRequestHeader("Accept", "application/json");
  request.upload.addEventListener("progress", (step) => {
    progress.value = step.total ? step.loaded / step.total : 0;
    say(step.loaded < step.total ? `Uploading: ${Math.floor(progress.value * 100)} %` : "Checking every task");
  });
  request.addEventListener("loadend", () => {
    button.disabled = false;
    progress.hidden = true;
    finish(request);
  });
  button.disabled = true;
  progress.hidden = false;
  at("import-problems").hidden = true;
  say("Uploading");
  request.send(data);
}

/** @param {XMLHttpRequest} request */
function finish(request) {
  if (request.status === 0) return say("The connection was lost; nothing was imported unless the set shows on the tasks page.");
  if (request.status === 413) return say("The archive is too large for the browser; use manage.py tasks import.");
  /** @type {{address?: string, problems?: Problem[], number?: number}} */
  let answer = {};
  try {
    answer = JSON.parse(request.responseText);
  } catch {
    return say(`The server answered ${request.status}; nothing was imported.`);
  }
  if (answer.address) {
    say("Imported");
    location.assign(answer.address);
    return;
  }
  say("");
  showProblems(answer.problems ?? [], answer.number ?? 0);
}

/** @param {Problem[]} problems @param {number} number */
function showProblems(problems, number) {
  at("import-number").textContent = `${number} problem${number === 1 ? "" : "s"}`;
  at("import-rows").replaceChildren(...problems.map(row));
  at("import-problems").hidden = false;
  at("import-problems").scrollIntoView({ block: "nearest" });
}

/** @param {Problem} problem */
function row(problem) {
  const line = document.createElement("tr");
  const texts = [problem.file || "–", problem.field || "–", `${problem.message} ${problem.remedy}`, problem.rule];
  const looks = ["mono wrap", "mono", "", "mono nowrap"];
  texts.forEach((text, index) => {
    const cell = document.createElement("td");
    cell.className = looks[index] ?? "";
    cell.textContent = text;
    line.append(cell);
  });
  return line;
}
