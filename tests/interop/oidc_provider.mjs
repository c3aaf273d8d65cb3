// Issuer of the certified package `oidc-provider`: node oidc_provider.mjs MODULE RESOURCE CALLBACK. Prints its URL.
// The access tokens of the resource are JWTs with groups. The form signs in any user name.
import { createServer } from "node:http";
import { pathToFileURL } from "node:url";

const [module, resource, callback] = process.argv.slice(2);
const { default: Provider } = await import(pathToFileURL(module));
const server = createServer((request, response) => handler(request, response));
await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
const url = `http://127.0.0.1:${server.address().port}`;
const provider = new Provider(url, {
  clients: [
    { client_id: "page", redirect_uris: [callback], token_endpoint_auth_method: "none", grant_types: ["authorization_code"] },
  ],
  cookies: { keys: ["a key for tests"] },
  findAccount: (_, sub) => ({ accountId: sub, claims: () => ({ sub, preferred_username: `${sub}@acme` }) }),
  extraTokenClaims: (_, token) =>
    ({ preferred_username: `${token.accountId}@acme`, realm_access: { roles: ["finance"] } }),
  features: {
    resourceIndicators: {
      enabled: true,
      getResourceServerInfo: (_, requested) => {
        if (requested !== resource) throw new Error("another resource");
        return { scope: "skills:read", audience: resource, accessTokenFormat: "jwt" };
      },
    },
  },
});
const handler = provider.callback();
console.log(url);
