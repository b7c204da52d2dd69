// Before anything is drawn: light or dark, as Airflow's own pages are. They keep the choice in localStorage, and a frame
// of the same origin hears when it changes.
(function () {
  var dark = window.matchMedia("(prefers-color-scheme: dark)");
  function follow() {
    var chosen = null;
    try {
      chosen = window.localStorage.getItem("theme");
    } catch (error) {
      // storage is forbidden: as the system has it
    }
    var isDark = chosen === "dark" || (chosen !== "light" && dark.matches);
    document.documentElement.dataset.theme = isDark ? "dark" : "light";
  }
  follow();
  window.addEventListener("storage", follow);
  dark.addEventListener("change", follow);
  document.documentElement.classList.toggle("framed", window.parent !== window);
})();
