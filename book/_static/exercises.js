// Filters above the table of exercises. Without this script the table is whole.
(() => {
  const table = document.querySelector("table.course-exercises");
  if (!table) return;
  const rows = [...table.tBodies[0].rows];
  const minutes = (row) => Number(row.cells[3].textContent);
  const chapters = [...new Set(rows.map((row) => row.cells[1].textContent.trim()))];
  const options = (pairs) => ["", ...pairs].map((pair) =>
    pair ? new Option(pair[1], pair[0]) : new Option("any", ""));

  const form = document.createElement("form");
  form.className = "course-filter";
  form.setAttribute("role", "search");
  form.setAttribute("aria-label", "Filter the exercises");
  form.innerHTML = `
    <label class="words">Name, chapter or check <input type="search" autocomplete="off"></label>
    <label>Chapter <select></select></label>
    <label>Difficulty <select></select></label>
    <label>Minutes <select></select></label>
    <label>Checked besides values <select></select></label>
    <button type="reset">Show all</button>
    <output aria-live="polite"></output>`;
  const text = form.querySelector("input");
  const said = form.querySelector("output");
  const [chapter, difficulty, most, check] = form.querySelectorAll("select");
  chapter.append(...options(chapters.map((title) => [title, title])));
  difficulty.append(...options([[1, "★☆☆"], [2, "★★☆"], [3, "★★★"]]));
  most.append(...options([10, 15, 20, 30, 45].map((n) => [n, `${n} at most`])));
  check.append(...options([
    ["gradients", "gradients"], ["loops", "no Python loop"], ["memory", "memory"],
    ["operations", "FLOPs or kernels"], ["communication", "communication"], ["nothing", "nothing"],
  ]));

  const fits = (row, words) =>
    words.every((word) => row.textContent.toLowerCase().includes(word))
    && (!chapter.value || row.cells[1].textContent.trim() === chapter.value)
    && (!difficulty.value || row.classList.contains(`difficulty-${difficulty.value}`))
    && (!most.value || minutes(row) <= Number(most.value))
    && (!check.value || row.classList.contains(`checks-${check.value}`));
  const show = () => {
    const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) row.hidden = !fits(row, words);
    const shown = rows.filter((row) => !row.hidden);
    const sum = shown.reduce((total, row) => total + minutes(row), 0);
    said.textContent = `${shown.length} of ${rows.length}, ${sum} min`;
  };

  form.addEventListener("input", show);
  form.addEventListener("reset", () => setTimeout(show));
  form.addEventListener("submit", (event) => event.preventDefault());
  document.querySelector(".course-filter-place").append(form);
  show();
})();
