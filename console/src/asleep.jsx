// A session without a kernel is not started by looking at it.
import { Empty } from "./parts.jsx";

export const asleep = (session) => session.status === "dead";
export const Asleep = () => <Empty title="No kernel"><p>The session gets one with its next cell.</p></Empty>;
