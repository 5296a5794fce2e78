// Sortable tables: click a column header to sort, click it again to reverse the order.
for (const table of document.querySelectorAll("table.sortable")) {
  const headers = [...table.tHead.rows[0].cells];
  headers.forEach((header, column) => {
    header.querySelector("button").addEventListener("click", () => {
      // Names start in ascending order, numbers in descending order.
      const [first, second] =
        column === 0 ? ["ascending", "descending"] : ["descending", "ascending"];
      const order = header.getAttribute("aria-sort") === first ? second : first;
      headers.forEach((other) => other.setAttribute("aria-sort", other === header ? order : "none"));
      const sign = order === "ascending" ? 1 : -1;
      const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
      const compare = (a, b) =>
        isNaN(a) || isNaN(b) ? a.localeCompare(b) : Number(a) - Number(b);
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => sign * compare(key(a), key(b)));
      table.tBodies[0].append(...rows);
    });
  });
}
