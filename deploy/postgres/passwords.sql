-- Gives the four roles the passwords that lie in libpq service files (deploy/make-secrets.sh writes them).
-- Run it by psql as a superuser, on a server that was just made; elsewhere psql's \password, which sends no plain
-- password, is better. Another folder:  psql -v secrets=… -f passwords.sql
\set ON_ERROR_STOP on
\if :{?secrets}
\else
  \set secrets /run/secrets
\endif
\set migrator `sed -n 's/^password=//p' :'secrets'/migrator`
\set api `sed -n 's/^password=//p' :'secrets'/api`
\set worker `sed -n 's/^password=//p' :'secrets'/worker`
ALTER ROLE tilewright_migrator PASSWORD :'migrator';
ALTER ROLE tilewright_api PASSWORD :'api';
ALTER ROLE tilewright_worker PASSWORD :'worker';
