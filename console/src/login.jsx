// What is shown to whoever has no token yet.
import { useState } from "./libraries.js";
import { live } from "./live.js";
import { Button, Command } from "./parts.jsx";

export function Login({ onToken }) {
  const [text, setText] = useState("");
  const [problem, setProblem] = useState(live.problem);
  const submit = async (event) => {
    event.preventDefault();
    setProblem(await onToken(text.trim()));
  };
  return (
    <main class="login">
      <form onSubmit={submit}>
        <h1><img src="console/icon.svg" alt="" width="28" height="28" />cellblock</h1>
        <p>On the machine where sessions run, this command opens the console:</p>
        <Command>cellblock console</Command>
        <label for="token">Or show a token, which <code>cellblock tokens create NAME --scope run --scope approve</code> makes:</label>
        <input id="token" type="password" autocomplete="off" spellcheck={false} placeholder="cb_…" value={text} onInput={(event) => setText(event.currentTarget.value)} required />
        {problem && <p class="failure" role="alert">{problem}</p>}
        <Button type="submit" kind="solid">Log in</Button>
        <p class="note">The token stays in this tab until you close it.</p>
      </form>
    </main>
  );
}
