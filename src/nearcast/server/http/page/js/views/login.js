// Logging in.

import { logIn, session } from "../api.js";
import { h } from "../dom.js";

/** The form for a name and password. */
export class LoginView {
  constructor() {
    this.name = h("input", { name: "user", autocomplete: "username", required: true, autocapitalize: "off", spellcheck: "false" });
    this.password = h("input", { name: "password", type: "password", autocomplete: "current-password", required: true });
    this.problem = h("p.problem", { role: "alert", hidden: true });
    this.button = h("button.primary", { type: "submit" }, "Log in");
    this.form = h("form.card", { onsubmit: (event) => this.send(event) },
      h("h1", "Log in"), h("p.dim", "Operators are named by ", h("code", "nearcast passwd operators.txt NAME --role operator"), "."),
      h("label.field", "Name", this.name), h("label.field", "Password", this.password), this.problem, this.button);
    this.nobody = h("p.empty", "Nobody can log in here yet: nearcast.toml names no operators.");
    this.element = h("div.login", this.form, this.nobody);
  }

  show() {
    this.form.hidden = !session.login;
    this.nobody.hidden = session.login;
    if (session.login) this.name.focus();
  }

  async send(event) {
    event.preventDefault();
    this.button.disabled = true;
    this.problem.hidden = true;
    try {
      await logIn({ user: this.name.value, password: this.password.value });
      this.password.value = "";
    } catch (problem) {
      this.problem.textContent = problem.status === 401 ? "The name or the password is wrong." : problem.message;
      this.problem.hidden = false;
      this.password.select();
    } finally {
      this.button.disabled = false;
    }
  }
}
