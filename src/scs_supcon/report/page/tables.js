// Tables that are sorted by a click on the head of a column, and turned round by another.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      // Names go up first, numbers down; the second click turns round.
      const first = column === 0 ? "ascending" : "descending";
      const other = column === 0 ? "descending" : "ascending";
      const order = head.getAttribute("aria-sort") === first ? other : first;
      heads.forEach((one) => one.setAttribute("aria-sort", one === head ? order : "none"));
      const sign = order === "ascending" ? 1 : -1;
      const value = (row) => Number(row.cells[column].dataset.value);
      const rows = [...table.tBodies[0].rows].sort((a, b) => sign * (value(a) - value(b)));
      table.tBodies[0].append(...rows);
    });
  });
}
