// oidc-provider on a loopback port, which it prints: `node provider.mjs PACKAGE SECRET RETURN`, PACKAGE being its folder.
// Any login and password will do; `alice` belongs to the group `vision`.
import { generateKeyPairSync } from 'node:crypto';
import { createServer } from 'node:http';

const [folder, secret, address] = process.argv.slice(2);
const { Provider } = await import(`${folder}/lib/index.js`);
const keys = [['rsa', { modulusLength: 2048 }], ['ec', { namedCurve: 'P-256' }], ['ed25519', {}]];
const client = { client_secret: secret, redirect_uris: [address] };
const configuration = {
  // One client for each kind of signature; without a secret it is PKCE alone.
  clients: [
    { ...client, client_id: 'tilewright' },
    { ...client, client_id: 'es', id_token_signed_response_alg: 'ES256' },
    { ...client, client_id: 'ed', id_token_signed_response_alg: 'EdDSA' },
    { redirect_uris: [address], client_id: 'open', token_endpoint_auth_method: 'none' },
  ],
  enabledJWA: { idTokenSigningAlgValues: ['RS256', 'ES256', 'EdDSA'] },
  jwks: { keys: keys.map(([kind, how]) => generateKeyPairSync(kind, how).privateKey.export({ format: 'jwk' })) },
  cookies: { keys: ['of this run'] },
  claims: { openid: ['sub'], groups: ['groups'] }, // by a scope of its own, as at Dex, and told at userinfo alone
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id, groups: id === 'alice' ? ['vision'] : [] }) }),
};
const server = createServer((request, response) => provider.callback()(request, response));
let provider;
server.listen(0, '127.0.0.1', () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  provider = new Provider(issuer, configuration);
  console.log(issuer);
});
