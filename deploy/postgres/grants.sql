-- Who may write to which table. Run it by psql as the migrator after every `tilewright db upgrade`; it may be run at
-- any time, also while the programs work. Both read every table; nobody but the migrator changes one.
--
-- A table that is missing from the list below can be read only, until someone decides and adds it.
\set ON_ERROR_STOP on
\if :{?api}
\else
  \set api tilewright_api
\endif
\if :{?worker}
\else
  \set worker tilewright_worker
\endif

BEGIN;

SELECT format('REVOKE ALL ON %I.%I FROM %I, %I', schemaname, tablename, :'api', :'worker')
FROM pg_tables WHERE schemaname = 'public' \gexec
GRANT SELECT ON ALL TABLES IN SCHEMA public TO :"api", :"worker";
GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO :"api", :"worker";
REVOKE EXECUTE ON ALL ROUTINES IN SCHEMA public FROM PUBLIC;
GRANT EXECUTE ON ALL ROUTINES IN SCHEMA public TO :"api", :"worker";

SELECT format('GRANT %s ON %I TO %I', privileges, relation, grantee)
FROM (VALUES
  -- relation              api's writes                worker's writes
  ('device_models',        '',                         'INSERT, UPDATE'),
  ('devices',              '',                         'INSERT, UPDATE'),
  ('environments',         '',                         'INSERT'),
  ('kernels',              '',                         'INSERT, UPDATE'),
  ('kernel_variants',      '',                         'INSERT'),
  ('problems',             'INSERT',                   'INSERT'),
  ('studies',              '',                         'INSERT, UPDATE'),
  ('tuning_jobs',          'INSERT, UPDATE',           'INSERT, UPDATE'),
  ('idempotency_keys',     'INSERT',                   ''),
  ('trials',               '',                         'INSERT'),
  ('best_configurations',  '',                         'INSERT, UPDATE'),
  -- The chores of every API and worker fire schedules: both add jobs, move schedules on and note what came of it.
  ('schedules',            'INSERT, UPDATE, DELETE',   'UPDATE'),
  ('schedule_problems',    'INSERT, DELETE',           ''),
  ('schedule_fires',       'INSERT, UPDATE, DELETE',   'INSERT, UPDATE, DELETE'),
  ('tilewright_version',   '',                         '')
) AS wanted (relation, of_api, of_worker)
CROSS JOIN LATERAL (VALUES (of_api, :'api'), (of_worker, :'worker')) AS one (privileges, grantee)
WHERE privileges <> '' AND to_regclass(format('public.%I', relation)) IS NOT NULL \gexec

-- The job engine's functions run with the rights of their caller.
SELECT format('GRANT INSERT, UPDATE, DELETE ON %I TO %I, %I', tablename, :'api', :'worker')
FROM pg_tables WHERE schemaname = 'public' AND tablename LIKE 'procrastinate\_%' \gexec

COMMIT;
