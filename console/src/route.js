// Where in the page somebody is: behind the # of the address.
import { useEffect, useState } from "./libraries.js";

export function here() {
  const [view, ...rest] = location.hash.replace(/^#\/?/, "").split("/").map(decoded);
  return { view: view || "sessions", rest };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return "";
  }
}

export function go(...parts) {
  location.hash = `#/${parts.map(encodeURIComponent).join("/")}`;
}

export function useRoute() {
  const [route, setRoute] = useState(here);
  useEffect(() => {
    const look = () => setRoute(here());
    addEventListener("hashchange", look);
    return () => removeEventListener("hashchange", look);
  }, []);
  return route;
}
