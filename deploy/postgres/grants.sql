-- The tables that each role may write to. Run it by psql as the migrator after every `tilewright db upgrade`; it may be
-- run at any time, also while the programs work. API and worker read every table except secrets; only the migrator alters
-- tables.
--
-- A table that is missing from the list below can only be read, until it is added there.
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
-- But not the secrets of webhooks: a worker makes messages, it does not sign them.
SELECT format('REVOKE SELECT ON webhooks FROM %I; GRANT SELECT (id, states, project_id) ON webhooks TO %I', :'worker', :'worker')
WHERE to_regclass('public.webhooks') IS NOT NULL \gexec
GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO :"api", :"worker";
REVOKE EXECUTE ON ALL ROUTINES IN SCHEMA public FROM PUBLIC;
GRANT EXECUTE ON ALL ROUTINES IN SCHEMA public TO :"api", :"worker";

SELECT format('GRANT %s ON %I TO %I', privileges, relation, grantee)
FROM (VALUES
  -- relation              api's writes                worker's writes
  -- An import adds results of other installations; existing rows it leaves as they are.
  ('device_models',        'INSERT',                   'INSERT, UPDATE'),
  ('devices',              'UPDATE (drain_requested_at)', 'INSERT, UPDATE'),
  ('environments',         'INSERT',                   'INSERT'),
  ('kernels',              'INSERT',                   'INSERT, UPDATE'),
  ('kernel_variants',      'INSERT',                   'INSERT'),
  ('problems',             'INSERT',                   'INSERT'),
  ('studies',              'INSERT, UPDATE (next_number)', 'INSERT, UPDATE'),
  ('tuning_jobs',          'INSERT, UPDATE',           'INSERT, UPDATE'),
  -- The chores of both delete idempotency keys older than a month and, where a setting says so, samples of trials.
  ('idempotency_keys',     'INSERT, DELETE',           'DELETE'),
  ('trials',               'INSERT',                   'INSERT'),
  ('trials',  'UPDATE (warm_samples_ms, cold_samples_ms, samples_pruned_at, ci_low_ms, ci_high_ms)',
              'UPDATE (warm_samples_ms, cold_samples_ms, samples_pruned_at, ci_low_ms, ci_high_ms)'),
  ('trial_retries',        'INSERT',                   ''),
  -- A retraction is a request to the API, which puts the next best in its place.
  ('best_configurations',  'INSERT, UPDATE',           'INSERT, UPDATE'),
  ('family_tables',        'INSERT, UPDATE',           'INSERT, UPDATE'),
  -- A client's claim comes to the API; only a worker settles it.
  ('claims',               'INSERT',                   'UPDATE (state, found, settled_at)'),
  -- The chores of every API and worker fire schedules: both add jobs, set the next due time and record the outcome.
  ('schedules',            'INSERT, UPDATE, DELETE',   'UPDATE'),
  ('schedule_problems',    'INSERT, DELETE',           ''),
  ('schedule_fires',       'INSERT, UPDATE, DELETE',   'INSERT, UPDATE, DELETE'),
  ('comparisons',          'INSERT, UPDATE',           'INSERT, UPDATE'),
  ('demand',               'INSERT, UPDATE, DELETE',   ''),
  ('asked_shelves',        'INSERT, UPDATE, DELETE',   ''),
  -- Only an API predicts for callers; a fit is added, and older ones of its kind are deleted.
  ('predictors',           'INSERT, DELETE, UPDATE (predictions)', ''),
  ('study_notes',          'INSERT, DELETE',           ''),
  ('saved_views',          'INSERT, UPDATE, DELETE',   ''),
  ('helion_entries',       'INSERT, UPDATE, DELETE',   ''),
  ('projects',             'INSERT, UPDATE',           ''),
  ('api_keys',             'INSERT, UPDATE',           ''),
  ('browser_sessions',     'INSERT, DELETE',           ''),
  ('audit_entries',        'INSERT',                   ''),
  ('webhooks',             'INSERT, DELETE',           ''),
  -- The process that ends a job adds its messages; only an API sends them, and its chores delete old ones.
  ('webhook_deliveries',   'INSERT, UPDATE, DELETE',   'INSERT, DELETE'),
  -- Whichever process is first begins the round of chores that is due.
  ('chore_rounds',         'UPDATE',                   'UPDATE'),
  ('tilewright_version',   '',                         '')
) AS wanted (relation, of_api, of_worker)
CROSS JOIN LATERAL (VALUES (of_api, :'api'), (of_worker, :'worker')) AS one (privileges, grantee)
WHERE privileges <> '' AND to_regclass(format('public.%I', relation)) IS NOT NULL \gexec

-- The job engine's functions run with the rights of their caller.
SELECT format('GRANT INSERT, UPDATE, DELETE ON %I TO %I, %I', tablename, :'api', :'worker')
FROM pg_tables WHERE schemaname = 'public' AND tablename LIKE 'procrastinate\_%' \gexec

COMMIT;
