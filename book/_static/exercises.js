// A filter above the table of exercises. Without this script the table is whole.
(() => {
  const table = document.querySelector("table.course-exercises");
  if (!table) return;
  const rows = [...table.tBodies[0].rows];
  const form = document.createElement("form");
  form.className = "course-filter";
  form.setAttribute("role", "search");
  form.setAttribute("aria-label", "Filter the exercises");
  form.innerHTML = `
    <label>Name, chapter or check <input type="search" autocomplete="off"></label>
    <label>Difficulty <select>
      <option value="">any</option>
      <option value="1">★☆☆</option><option value="2">★★☆</option><option value="3">★★★</option>
    </select></label>
    <output aria-live="polite"></output>`;
  const [text, difficulty, said] = form.querySelectorAll("input, select, output");
  const minutes = (row) => Number(row.cells[3].textContent);

  const show = () => {
    const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = rows.filter((row) => {
      const content = row.textContent.toLowerCase();
      const fits = words.every((word) => content.includes(word));
      row.hidden = !(fits && (!difficulty.value || row.classList.contains(`difficulty-${difficulty.value}`)));
      return !row.hidden;
    });
    const sum = shown.reduce((total, row) => total + minutes(row), 0);
    said.textContent = `${shown.length} of ${rows.length}, ${sum} min`;
  };

  form.addEventListener("input", show);
  form.addEventListener("submit", (event) => event.preventDefault());
  document.querySelector(".course-filter-place").append(form);
  show();
})();
