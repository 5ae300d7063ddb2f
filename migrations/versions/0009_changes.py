"""Triggers notify processes that keep best configurations in memory of every committed change to them."""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

# Statement triggers: a statement that changes many rows is one message a device model. (An import inserts row by row,
# which is a message each.) NOTIFY is delivered at the commit, in the order of commits, and a transaction's equal
# messages are one. Of a statement up to 50 rows are named one by one.
BESTS = """
CREATE FUNCTION tilewright_tell_bests() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'DELETE' AND (SELECT count(*) FROM (SELECT FROM changed LIMIT 51) AS few) <= 50 THEN
        PERFORM pg_notify('tilewright_best', 'best ' || string_agg(id::text, ',')) FROM changed HAVING count(*) > 0;
    ELSE
        PERFORM pg_notify('tilewright_best', 'model ' || id)
        FROM (SELECT DISTINCT device_model_id AS id FROM changed) AS one;
    END IF;
    RETURN NULL;
END $$
"""

# A study that tries a variant for the first time is improvable by one variant less.
TRIALS = """
CREATE FUNCTION tilewright_tell_trials() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    studied integer[] := ARRAY(
        SELECT DISTINCT c.study_id FROM changed AS c
        WHERE NOT EXISTS (SELECT FROM trials AS t
            WHERE t.study_id = c.study_id AND t.kernel_variant_id = c.kernel_variant_id AND t.id < c.id));
BEGIN
    IF cardinality(studied) BETWEEN 1 AND 50 THEN
        PERFORM pg_notify('tilewright_best', 'study ' || array_to_string(studied, ','));
    ELSE
        PERFORM pg_notify('tilewright_best', 'model ' || id)
        FROM (SELECT DISTINCT device_model_id AS id FROM studies WHERE studies.id = ANY (studied)) AS one;
    END IF;
    RETURN NULL;
END $$
"""

STUDIES = """
CREATE FUNCTION tilewright_tell_studies() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('tilewright_best', 'study ' || NEW.id);
    RETURN NULL;
END $$
"""

MODELS = """
CREATE FUNCTION tilewright_tell_models() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('tilewright_best', 'model ' || NEW.id);
    RETURN NULL;
END $$
"""

# Staleness is against the environments that a model's devices report.
DEVICES = """
CREATE FUNCTION tilewright_tell_devices() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        PERFORM pg_notify('tilewright_best', 'model ' || OLD.model_id);
    END IF;
    IF TG_OP <> 'DELETE' THEN
        PERFORM pg_notify('tilewright_best', 'model ' || NEW.model_id);
    END IF;
    RETURN NULL;
END $$
"""

FUNCTIONS = {"bests": BESTS, "trials": TRIALS, "studies": STUDIES, "models": MODELS, "devices": DEVICES}
MOVED = "(OLD.environment_id, OLD.model_id) IS DISTINCT FROM (NEW.environment_id, NEW.model_id)"
SPACE = "OLD.space_by_source IS DISTINCT FROM NEW.space_by_source"
# Table, event, which rows the function sees, condition, function.
TRIGGERS = (
    ("best_configurations", "INSERT", "NEW TABLE", "", "bests"),
    ("best_configurations", "UPDATE", "NEW TABLE", "", "bests"),
    ("best_configurations", "DELETE", "OLD TABLE", "", "bests"),
    ("trials", "INSERT", "NEW TABLE", "", "trials"),
    ("studies", "UPDATE", "", SPACE, "studies"),
    ("device_models", "INSERT", "", "", "models"),
    ("device_models", "UPDATE", "", "OLD.* IS DISTINCT FROM NEW.*", "models"),
    ("devices", "INSERT", "", "", "devices"),
    ("devices", "UPDATE", "", MOVED, "devices"),
    ("devices", "DELETE", "", "", "devices"),
)


def upgrade() -> None:
    for function in FUNCTIONS.values():
        op.execute(function)
    for table, event, seen, condition, function in TRIGGERS:
        rows = f"REFERENCING {seen} AS changed FOR EACH STATEMENT" if seen else "FOR EACH ROW"
        when = f"WHEN ({condition})" if condition else ""
        op.execute(
            f"CREATE TRIGGER tell_{event.lower()} AFTER {event} ON {table} {rows} {when} "
            f"EXECUTE FUNCTION tilewright_tell_{function}()"
        )


def downgrade() -> None:
    for table, event, *_ in TRIGGERS:
        op.execute(f"DROP TRIGGER tell_{event.lower()} ON {table}")
    for name in FUNCTIONS:
        op.execute(f"DROP FUNCTION tilewright_tell_{name}()")
