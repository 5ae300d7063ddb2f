-- Three roles for one database, so that each program has only the rights that it needs:
--   migrator  owns the database and everything in it: the only one that makes and changes tables
--   api       answers requests and takes jobs
--   worker    registers its device, runs jobs, records trials
--
-- Run it by psql as a superuser, connected to the database; once, or again at any time. A database that another role
-- migrated is handed over to the migrator. The roles get no passwords here (\password does that, or passwords.sql).
-- After every `tilewright db upgrade` comes grants.sql.
--
-- Other names:  psql -v migrator=… -v api=… -v worker=… -f roles.sql
\set ON_ERROR_STOP on
\if :{?migrator}
\else
  \set migrator tilewright_migrator
\endif
\if :{?api}
\else
  \set api tilewright_api
\endif
\if :{?worker}
\else
  \set worker tilewright_worker
\endif

BEGIN;

SELECT format('CREATE ROLE %I LOGIN', name)
FROM unnest(ARRAY[:'migrator', :'api', :'worker']) AS name
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) \gexec
SELECT format('ALTER ROLE %I NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS', name)
FROM unnest(ARRAY[:'migrator', :'api', :'worker']) AS name \gexec

ALTER DATABASE :"DBNAME" OWNER TO :"migrator";
REVOKE ALL ON DATABASE :"DBNAME" FROM PUBLIC, :"api", :"worker";
GRANT CONNECT ON DATABASE :"DBNAME" TO :"api", :"worker";
ALTER SCHEMA public OWNER TO pg_database_owner;  -- as PostgreSQL creates it: the owner of the database
REVOKE ALL ON SCHEMA public FROM PUBLIC, :"api", :"worker";
GRANT USAGE ON SCHEMA public TO :"api", :"worker";

-- Sequences of columns follow their tables; row types follow theirs.
SELECT format('ALTER TABLE %I.%I OWNER TO %I', schemaname, tablename, :'migrator')
FROM pg_tables WHERE schemaname = 'public' \gexec
SELECT format('ALTER ROUTINE %s OWNER TO %I', oid::regprocedure, :'migrator')
FROM pg_proc WHERE pronamespace = 'public'::regnamespace \gexec
SELECT format('ALTER TYPE %s OWNER TO %I', pg_type.oid::regtype, :'migrator')
FROM pg_type LEFT JOIN pg_class ON pg_class.oid = typrelid
WHERE typnamespace = 'public'::regnamespace AND (typtype = 'e' OR relkind = 'c') \gexec

-- Tables of a later migration can be read at once; grants.sql lists who may write to them.
ALTER DEFAULT PRIVILEGES FOR ROLE :"migrator" IN SCHEMA public GRANT SELECT ON TABLES TO :"api", :"worker";
ALTER DEFAULT PRIVILEGES FOR ROLE :"migrator" IN SCHEMA public GRANT USAGE ON SEQUENCES TO :"api", :"worker";
ALTER DEFAULT PRIVILEGES FOR ROLE :"migrator" REVOKE EXECUTE ON ROUTINES FROM PUBLIC;
ALTER DEFAULT PRIVILEGES FOR ROLE :"migrator" IN SCHEMA public GRANT EXECUTE ON ROUTINES TO :"api", :"worker";

COMMIT;
