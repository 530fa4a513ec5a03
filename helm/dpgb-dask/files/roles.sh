# Make the ledger's roles: the owner owns the database, analyst and auditor may do what the owner grants them.
# Names and passwords come from the environment; psql quotes them, and none is an argument of a process. The server logs
# statements that fail, passwords and all, and with log_statement every one: not these.
psql --no-psqlrc --quiet -v ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" <<'SQL'
SET log_min_error_statement TO panic;
SET log_min_duration_statement TO -1;
SET log_statement TO none;
\getenv owner OWNER_ROLE
\getenv owner_password OWNER_PASSWORD
\getenv analyst ANALYST_ROLE
\getenv analyst_password ANALYST_PASSWORD
\getenv auditor AUDITOR_ROLE
\getenv auditor_password AUDITOR_PASSWORD
\getenv database POSTGRES_DB
CREATE ROLE :"owner" LOGIN PASSWORD :'owner_password';
CREATE ROLE :"analyst" LOGIN PASSWORD :'analyst_password';
CREATE ROLE :"auditor" LOGIN PASSWORD :'auditor_password';
ALTER DATABASE :"database" OWNER TO :"owner";
REVOKE ALL ON DATABASE :"database" FROM PUBLIC;
GRANT CONNECT ON DATABASE :"database" TO :"analyst", :"auditor";
SQL
