-- The functions by which a ledger on PostgreSQL is written. Its owner installs them (ledger_tables.py); analysts may
-- execute some of them (ledger_server.py) and write no table themselves.
--
-- They run with the owner's rights, so nothing that a caller can make or set may change what they do:
-- * search_path is pg_catalog, and a ledger's own names are written with their schema (SCHEMA below);
-- * every argument has an SQL type, so texts that others read later are built here, never taken over;
-- * `dpgb_require` refuses what is false and what is NULL;
-- * each takes the lock of the head first, so that it reads what the entry before it left.
-- The client verifies what they wrote like everything else: it adds up the entries again (ledger_book.Tally).

-- A version before had other functions of these names; with them end all rights on them.
DO $$
DECLARE
  before record;
BEGIN
  FOR before IN
    SELECT p.oid::regprocedure AS name FROM pg_catalog.pg_proc AS p
    WHERE pronamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = current_schema())
      AND starts_with(proname, 'dpgb_')
  LOOP
    EXECUTE 'DROP FUNCTION ' || before.name;
  END LOOP;
END $$;

CREATE FUNCTION SCHEMA.dpgb_require(p_holds boolean, p_rule text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF p_holds IS NOT TRUE THEN
    RAISE EXCEPTION USING ERRCODE = 'DPGB0', MESSAGE = p_rule;
  END IF;
END $$;

-- Take the lock of the head until the transaction ends. A caller that waits gives up in the end, and one that stands
-- still inside its transaction loses it before that. What the transaction writes is on disk, and on a synchronous standby's,
-- before its commit returns, whatever a database or a role has set.
CREATE FUNCTION SCHEMA.dpgb_lock(p_wait_ms integer) RETURNS SCHEMA.dpgb_head
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  head SCHEMA.dpgb_head;
BEGIN
  PERFORM set_config('lock_timeout', p_wait_ms::text, true),
          set_config('idle_in_transaction_session_timeout', (p_wait_ms / 2)::text, true);
  IF current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
  SELECT * INTO STRICT head FROM SCHEMA.dpgb_head FOR UPDATE;
  RETURN head;
END $$;

-- The JSON form of a text as Python's json.dumps writes it: ASCII, with surrogate pairs.
CREATE FUNCTION SCHEMA.dpgb_json(p_text text) RETURNS text LANGUAGE sql AS $$
  SELECT CASE WHEN p_text ~ '^[ -~]*$' COLLATE "C" THEN to_json(p_text)::text ELSE (
    SELECT string_agg(CASE
        WHEN code BETWEEN 32 AND 126 THEN c
        WHEN code < 65536 THEN chr(92) || 'u' || lpad(to_hex(code), 4, '0')
        ELSE chr(92) || 'u' || to_hex(55296 + ((code - 65536) >> 10))
          || chr(92) || 'u' || to_hex(56320 + ((code - 65536) & 1023))
      END, '' ORDER BY i)
    FROM (SELECT c, ascii(c) AS code, i
          FROM regexp_split_to_table(to_json(p_text)::text, '') WITH ORDINALITY AS split(c, i)) AS letters
  ) END
$$;

-- Add an entry to the chain.
CREATE FUNCTION SCHEMA.dpgb_append(p_kind text, p_account text, p_fit text, p_body jsonb)
RETURNS SCHEMA.dpgb_head LANGUAGE plpgsql AS $$
DECLARE
  head SCHEMA.dpgb_head;
  v_prev text;
  v_at text := to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"+00:00"');
BEGIN
  SELECT * INTO STRICT head FROM SCHEMA.dpgb_head FOR UPDATE;
  v_prev := head.hash;
  head.seq := head.seq + 1;
  head.hash := encode(sha256(convert_to(v_prev || chr(10)
    || '{"account":' || SCHEMA.dpgb_json(p_account) || ',"at":' || SCHEMA.dpgb_json(v_at)
    || ',"body":' || SCHEMA.dpgb_json(p_body::text) || ',"fit_id":' || SCHEMA.dpgb_json(p_fit)
    || ',"kind":' || SCHEMA.dpgb_json(p_kind) || ',"seq":' || head.seq || '}', 'UTF8')), 'hex');
  INSERT INTO SCHEMA.dpgb_entries (seq, kind, account, fit_id, at, body, prev, hash)
    VALUES (head.seq, p_kind, p_account, p_fit, v_at, p_body::text, v_prev, head.hash);
  UPDATE SCHEMA.dpgb_head SET seq = head.seq, hash = head.hash;
  RETURN head;
END $$;

-- ---- what a fit costs -----------------------------------------------------------------------------------------------

-- Whether a charge covers a mechanism of a price (account_units.cost), both in units of 2^-64.
CREATE FUNCTION SCHEMA.dpgb_covers(p_charge numeric, p_price numeric, p_pure boolean, p_analysis text)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  one CONSTANT numeric := 18446744073709551616;
  e numeric; -- e^ε
  x numeric; -- μ/2
  term numeric;
  total numeric;
  k integer := 1;
BEGIN
  IF NOT p_pure OR p_analysis = 'pure' THEN
    RETURN CASE WHEN p_pure OR p_analysis = 'gdp' THEN p_charge >= p_price
      WHEN p_analysis = 'zcdp' THEN 2 * p_charge >= p_price ELSE false END;
  END IF;
  e := exp(least(round(p_price, 100) / one, 50));
  IF p_analysis = 'zcdp' THEN
    RETURN p_charge * (e + 1) >= p_price * (e - 1); -- ρ = ε tanh(ε/2), whose tanh is 1 to 1e-21 from 50 on
  END IF;
  -- μ(ε)-GDP: Φ(μ/2) >= e^ε/(1 + e^ε), where Φ(x) = 1/2 + φ(x) (x + x³/3 + x⁵/15 + …). An ε above 50 is checked as 50.
  -- The client computes μ in double precision, so μ may be short by 1e-9 of it. A numeric keeps the digits of its parts.
  x := sqrt(round(p_charge, 100) / one) * 1.000000001 / 2;
  IF x > 12 THEN
    RETURN true; -- μ(50) < 20
  END IF;
  term := x;
  total := x;
  WHILE term > 1e-60 LOOP
    k := k + 2;
    term := round(term * x * x / k, 100);
    total := total + term;
  END LOOP;
  RETURN 2 * total * exp(-x * x / 2) * (e + 1)
    >= sqrt(6.28318530717958647692528676655900576839433879875021164194988918461563281) * (e - 1);
END $$;

-- Whether a charge covers a choice of bounded range p_price (account_units.cost).
CREATE FUNCTION SCHEMA.dpgb_covers_choice(p_charge numeric, p_price numeric, p_analysis text)
RETURNS boolean LANGUAGE sql AS $$
  SELECT CASE p_analysis WHEN 'gdp' THEN SCHEMA.dpgb_covers(p_charge, p_price / 2, true, 'gdp')
    ELSE SCHEMA.dpgb_covers(p_charge, p_price, true, p_analysis)
      OR p_analysis = 'zcdp' AND 8 * 18446744073709551616 * p_charge >= p_price * p_price END -- ρ = ε²/8
$$;

-- Whether an account charges each round of a fit with these terms by itself (account_units.is_itemised).
CREATE FUNCTION SCHEMA.dpgb_itemised(p_terms jsonb, p_analysis text) RETURNS boolean LANGUAGE sql AS $$
  SELECT coalesce((p_terms ->> 'pure')::boolean AND jsonb_array_length(p_terms -> 'bill') > 0, false)
    AND p_analysis <> 'pure'
$$;

-- What queries of a price in ε cost on a Poisson sample (spending.py): between the exact cost and what the client counts.
CREATE FUNCTION SCHEMA.dpgb_amplified(p_price numeric, p_rate numeric) RETURNS numeric LANGUAGE sql AS $$
  SELECT CASE WHEN p_price > 500 * 18446744073709551616 THEN p_price ELSE least(p_price, ceil(
    18446744073709551616 * ln(1 + p_rate * (exp(p_price / 18446744073709551616.0000000000000000000000000000000000000000)
    - 1)) * 1.0000000000009)) END
$$;

-- ---- fits -----------------------------------------------------------------------------------------------------------

-- Return an unfinished fit. The caller holds its lease, of which the table keeps the SHA-256 alone; or p_lease is NULL,
-- and the caller is the role that reserved the fit, or the owner.
CREATE FUNCTION SCHEMA.dpgb_unfinished(p_fit text, p_lease text) RETURNS SCHEMA.dpgb_fits LANGUAGE plpgsql AS $$
DECLARE
  fit SCHEMA.dpgb_fits;
  v_role text;
BEGIN
  PERFORM 1 FROM SCHEMA.dpgb_head FOR UPDATE;
  SELECT * INTO fit FROM SCHEMA.dpgb_fits WHERE fit_id = p_fit;
  PERFORM SCHEMA.dpgb_require(fit.state = 'RESERVED', 'There is no unfinished fit with this id.');
  IF p_lease IS NULL THEN
    v_role := coalesce(fit.terms::jsonb ->> 'role', session_user); -- fits from before there were roles have none
    PERFORM SCHEMA.dpgb_require(v_role = session_user OR pg_has_role(session_user, current_user, 'MEMBER'),
      'The fit is of another role; that role or the owner of the ledger resumes or settles it.');
  ELSE
    PERFORM SCHEMA.dpgb_require(fit.lease = encode(sha256(convert_to(p_lease, 'UTF8')), 'hex'),
      'The lease of the fit is another.');
  END IF;
  RETURN fit;
END $$;

CREATE FUNCTION SCHEMA.dpgb_restored_since(p_fit text) RETURNS boolean LANGUAGE sql AS $$
  SELECT EXISTS (SELECT 1 FROM SCHEMA.dpgb_entries WHERE kind = 'RESTORED' AND seq >
    (SELECT seq FROM SCHEMA.dpgb_entries WHERE fit_id = p_fit AND kind = 'RESERVED'))
$$;

-- Charge a fit. Of its terms (ledger_book.Terms) only what has the right type is kept, with the role that asks.
CREATE FUNCTION SCHEMA.dpgb_reserve(p_account text, p_fit text, p_lease text, p_charge numeric, p_terms jsonb)
RETURNS SCHEMA.dpgb_head
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $$
DECLARE
  acc SCHEMA.dpgb_accounts;
  t record;
  v_body jsonb;
  v_tau double precision;
BEGIN
  PERFORM 1 FROM SCHEMA.dpgb_head FOR UPDATE;
  SELECT * INTO acc FROM SCHEMA.dpgb_accounts WHERE name = p_account;
  PERFORM SCHEMA.dpgb_require(FOUND, 'There is no such account.');
  PERFORM SCHEMA.dpgb_require(p_fit ~ '^[0-9A-Za-z_-]{1,80}$' AND p_lease ~ '^[0-9a-f]{64}$'
    AND NOT EXISTS (SELECT 1 FROM SCHEMA.dpgb_fits WHERE fit_id = p_fit), 'The fit needs a new id and a lease.');
  SELECT * INTO t FROM jsonb_to_record(p_terms) AS x(epsilon double precision, delta double precision, price numeric,
    min_sigma_bits integer, tau double precision, plan_digest text, version text, public_seed numeric, commitment text,
    pure boolean, facts jsonb, unit_id text, who text, bill jsonb);
  -- NaN is greater than every number here
  PERFORM SCHEMA.dpgb_require(t.epsilon > 0 AND t.epsilon < 'Infinity' AND t.delta >= 0 AND t.delta < 1
    AND t.price > 0 AND t.price < 1e40 AND t.price = trunc(t.price) AND t.min_sigma_bits >= 0
    AND (t.tau = 0 OR t.tau > 1e-200) AND t.tau < 1 AND abs(t.public_seed) < 1e40
    -- of Gaussian noise, accounting.distance: 2^28 values, each 5e-4 / sigma^4 from a rounded Gaussian
    AND (t.pure OR t.min_sigma_bits <= 60 AND t.tau >= 134217.728 * power(2::double precision, -4 * t.min_sigma_bits))
    AND t.plan_digest || t.version || t.commitment || t.who IS NOT NULL AND t.pure IS NOT NULL
    AND jsonb_typeof(t.facts) = 'object'
    AND NOT EXISTS (SELECT 1 FROM jsonb_each(t.facts) AS fact WHERE jsonb_typeof(fact.value) <> 'string')
    AND jsonb_typeof(t.bill) = 'array',
    'A term of the fit is missing, or out of its range.');
  PERFORM SCHEMA.dpgb_require((SELECT coalesce(bool_and(coalesce(jsonb_typeof(item) = 'array'
    AND jsonb_array_length(item) = 3 AND item ->> 0 ~ '^[1-9][0-9]{0,39}$' AND jsonb_typeof(item -> 0) = 'string'
    AND item ->> 1 ~ '^[1-9][0-9]{0,11}$' AND jsonb_typeof(item -> 1) = 'number'
    AND item ->> 2 IN ('sums', 'choice', 'sample'), false)), true)
    FROM jsonb_array_elements(t.bill) AS items(item)), 'An item of the bill is malformed.');
  PERFORM SCHEMA.dpgb_require(acc.unit_id IS NULL OR acc.unit_id = t.unit_id, 'The account protects another unit.');
  -- of a fit that is charged by its rounds, each round's cost is checked when it is opened
  PERFORM SCHEMA.dpgb_require(p_charge >= 0 AND p_charge < 1e80 AND p_charge = trunc(p_charge)
    AND (SCHEMA.dpgb_itemised(p_terms, acc.analysis)
      OR SCHEMA.dpgb_covers(p_charge, t.price, t.pure, acc.analysis)), 'The charge does not cover the price of the fit.');
  PERFORM SCHEMA.dpgb_require(acc.spent::numeric + p_charge <= acc.cap::numeric, 'The account has too little left.');
  v_tau := acc.tau::double precision;
  IF t.tau > 0 THEN
    v_tau := v_tau + t.tau;
    v_tau := v_tau + v_tau * 1.1102230246251568e-16::double precision; -- the next number, as math.nextafter gives
  END IF;
  -- exp(700) is about the largest that a number can hold
  PERFORM SCHEMA.dpgb_require(acc.analysis <> 'gdp' OR v_tau = 0 OR (acc.epsilon::double precision <= 700 AND
    (1 + exp(least(acc.epsilon::double precision, 700))) * v_tau <= acc.delta::double precision / 1000),
    'The slack of the fits of the account would be too large.');
  v_body := jsonb_build_object('charge', trunc(p_charge)::text, 'role', session_user::text, 'epsilon', t.epsilon,
    'delta', t.delta, 'price', trunc(t.price)::text, 'min_sigma_bits', t.min_sigma_bits, 'tau', t.tau,
    'plan_digest', t.plan_digest, 'version', t.version, 'public_seed', trunc(t.public_seed), 'commitment', t.commitment,
    'pure', t.pure, 'facts', t.facts, 'unit_id', t.unit_id, 'who', t.who, 'bill', t.bill);
  UPDATE SCHEMA.dpgb_accounts SET spent = (acc.spent::numeric + trunc(p_charge))::text, tau = v_tau::text
    WHERE name = p_account;
  INSERT INTO SCHEMA.dpgb_fits (fit_id, account, state, price, terms, fingerprint, lease)
    VALUES (p_fit, p_account, 'RESERVED', trunc(p_charge)::text, v_body::text, '', p_lease);
  RETURN SCHEMA.dpgb_append('RESERVED', p_account, p_fit, v_body);
END $$;

-- Bind a fit to the fingerprint of its data, once.
CREATE FUNCTION SCHEMA.dpgb_bind(p_fit text, p_lease text, p_fingerprint text) RETURNS SCHEMA.dpgb_head
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  fit SCHEMA.dpgb_fits := SCHEMA.dpgb_unfinished(p_fit, coalesce(p_lease, ''));
BEGIN
  PERFORM SCHEMA.dpgb_require(fit.fingerprint = '' AND length(p_fingerprint) BETWEEN 1 AND 200,
    'The fit is bound to its data already.');
  UPDATE SCHEMA.dpgb_fits SET fingerprint = p_fingerprint WHERE fit_id = p_fit;
  RETURN SCHEMA.dpgb_append('BOUND', fit.account, p_fit, jsonb_build_object('fingerprint', p_fingerprint));
END $$;

-- Give an unfinished fit a new lease.
CREATE FUNCTION SCHEMA.dpgb_take(p_fit text, p_lease text) RETURNS SCHEMA.dpgb_head
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  fit SCHEMA.dpgb_fits := SCHEMA.dpgb_unfinished(p_fit, NULL);
BEGIN
  PERFORM SCHEMA.dpgb_require(p_lease ~ '^[0-9a-f]{64}$' AND NOT SCHEMA.dpgb_restored_since(p_fit),
    'The fit was unfinished when the ledger was restored, or the lease is malformed.');
  UPDATE SCHEMA.dpgb_fits SET lease = p_lease WHERE fit_id = p_fit;
  RETURN SCHEMA.dpgb_append('LEASED', fit.account, p_fit, '{}');
END $$;

-- Record that a round is opened, on all rows or on those of a draw, if all rounds cost at most what was reserved: in the
-- fit's currency and, if the account charges rounds by themselves, in the account's unit (account_units.Rounds), in which
-- this one costs p_cost, as a choice or not.
CREATE FUNCTION SCHEMA.dpgb_open(p_fit text, p_lease text, p_position integer, p_query_id text, p_seal text,
  p_price numeric, p_kind text, p_group bigint, p_low bigint, p_high bigint, p_cost numeric, p_choice boolean)
RETURNS SCHEMA.dpgb_head
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  fit SCHEMA.dpgb_fits := SCHEMA.dpgb_unfinished(p_fit, coalesce(p_lease, ''));
  v_terms jsonb := fit.terms::jsonb;
  v_last jsonb;
  v_body jsonb;
  v_spent numeric;
  part record;
  v_before numeric := 0; -- what the draw's group costs
  v_mine numeric; -- price of the queries on the same rows
  v_analysis text := (SELECT analysis FROM SCHEMA.dpgb_accounts WHERE name = fit.account);
  v_itemised boolean := SCHEMA.dpgb_itemised(v_terms, v_analysis);
  v_charged numeric; -- the three of them in the account's unit
  v_charged_before numeric := 0;
  v_charged_mine numeric := coalesce(trunc(p_cost), 0);
  v_sample numeric := (SELECT coalesce(max((item ->> 0)::numeric), 0) FROM jsonb_array_elements(v_terms -> 'bill')
    AS items(item) WHERE item ->> 2 = 'sample'); -- ε of all queries on one sample
  v_least numeric; -- ε that p_cost has to cover
BEGIN
  SELECT body::jsonb INTO v_last FROM SCHEMA.dpgb_entries WHERE fit_id = p_fit AND kind = 'OPENED'
    ORDER BY seq DESC LIMIT 1;
  PERFORM SCHEMA.dpgb_require(p_position = coalesce((v_last ->> 'position')::integer + 1, 0),
    'The round does not follow the newest one.');
  PERFORM SCHEMA.dpgb_require(p_price > 0 AND p_price < 1e40 AND p_price = trunc(p_price), 'A round has a price.');
  PERFORM SCHEMA.dpgb_require(length(p_query_id) <= 200 AND length(p_seal) <= 200, 'A round has an id and a seal.');
  PERFORM SCHEMA.dpgb_require(CASE WHEN v_itemised THEN p_choice IS NOT NULL AND p_cost >= 0 AND p_cost < 1e80
    AND p_cost = trunc(p_cost) ELSE p_cost IS NULL AND p_choice IS NULL END, 'A round has a cost where it is charged.');
  v_spent := coalesce((v_last ->> 'spent')::numeric, 0);
  v_charged := coalesce((v_last ->> 'charged')::numeric, 0);
  v_least := CASE WHEN p_kind = 'sample' THEN v_sample ELSE trunc(p_price) END;
  v_mine := trunc(p_price);
  v_body := jsonb_build_object('position', p_position, 'query_id', p_query_id, 'seal', p_seal, 'price', v_mine::text);
  IF p_kind IS NULL THEN
    v_spent := v_spent + v_mine;
    v_charged := v_charged + v_charged_mine;
  ELSE
    PERFORM SCHEMA.dpgb_require(p_kind IN ('part', 'sample') AND p_group >= 0 AND p_group < 4294967296
      AND p_low >= 0 AND p_low < p_high AND p_high <= 4294967296, 'The draw of the round is malformed.');
    v_body := v_body || jsonb_build_object('rows', jsonb_build_array(p_kind, p_group, p_low, p_high));
    FOR part IN
      SELECT draw ->> 0 AS kind, (draw ->> 2)::bigint AS low, (draw ->> 3)::bigint AS high, sum(price) AS price,
        sum(cost) AS cost
      FROM (SELECT body::jsonb -> 'rows' AS draw, (body::jsonb ->> 'price')::numeric AS price,
              coalesce((body::jsonb ->> 'cost')::numeric, 0) AS cost
            FROM SCHEMA.dpgb_entries WHERE fit_id = p_fit AND kind = 'OPENED'
            AND body ~ ('"rows": ?[[]"[a-z]+", ?' || p_group || ',')) AS earlier -- parsing every round would take long
      GROUP BY 1, 2, 3
    LOOP
      IF (part.kind, part.low, part.high) = (p_kind, p_low, p_high) THEN
        v_mine := v_mine + part.price;
        v_charged_mine := v_charged_mine + part.cost;
        IF p_kind = 'sample' THEN
          v_least := 0; -- the first query on the sample has paid
        END IF;
      ELSE
        PERFORM SCHEMA.dpgb_require(part.kind = 'part' AND p_kind = 'part'
          AND (part.high <= p_low OR p_high <= part.low), 'The draw of the round does not go with its group.');
      END IF;
      v_before := greatest(v_before, part.price);
      v_charged_before := greatest(v_charged_before, part.cost);
    END LOOP;
    v_mine := greatest(v_mine, v_before);
    IF p_kind = 'sample' AND (v_terms ->> 'pure')::boolean THEN
      v_before := SCHEMA.dpgb_amplified(v_before, (p_high - p_low) / 4294967296.0);
      v_mine := SCHEMA.dpgb_amplified(v_mine, (p_high - p_low) / 4294967296.0);
    END IF;
    v_spent := v_spent - v_before + v_mine;
    v_charged := v_charged - v_charged_before + greatest(v_charged_mine, v_charged_before);
  END IF;
  IF v_itemised THEN
    PERFORM SCHEMA.dpgb_require(CASE WHEN v_least = 0 THEN true
      WHEN p_choice AND p_kind IS DISTINCT FROM 'sample' THEN SCHEMA.dpgb_covers_choice(p_cost, v_least, v_analysis)
      ELSE SCHEMA.dpgb_covers(p_cost, v_least, true, v_analysis) END, 'The cost does not cover the price of the round.');
    PERFORM SCHEMA.dpgb_require(p_kind IS DISTINCT FROM 'sample' OR v_sample > 0 AND v_mine <= v_sample,
      'The queries on the sample cost more than the fit reserved for one.');
    PERFORM SCHEMA.dpgb_require(v_charged <= fit.price::numeric, 'The round costs more than the account was charged.');
    v_body := v_body || jsonb_build_object('cost', trunc(p_cost)::text, 'choice', p_choice, 'charged', v_charged::text);
  END IF;
  PERFORM SCHEMA.dpgb_require(v_spent <= (v_terms ->> 'price')::numeric, 'The round costs more than the fit reserved.');
  RETURN SCHEMA.dpgb_append('OPENED', fit.account, p_fit, v_body || jsonb_build_object('spent', v_spent::text));
END $$;

-- End a fit: p_charge of what it reserved stands, which covers what it opened.
CREATE FUNCTION SCHEMA.dpgb_end(fit SCHEMA.dpgb_fits, p_charge numeric, p_kind text, p_body jsonb)
RETURNS SCHEMA.dpgb_head LANGUAGE plpgsql AS $$
DECLARE
  v_terms jsonb := fit.terms::jsonb;
  v_pure boolean := coalesce((v_terms ->> 'pure')::boolean, false); -- the first version had no pure fits
  acc SCHEMA.dpgb_accounts;
  v_opened numeric;
  v_charged numeric;
  v_itemised boolean;
BEGIN
  SELECT * INTO STRICT acc FROM SCHEMA.dpgb_accounts WHERE name = fit.account;
  v_itemised := SCHEMA.dpgb_itemised(v_terms, acc.analysis);
  PERFORM SCHEMA.dpgb_require(p_charge BETWEEN 0 AND fit.price::numeric AND p_charge = trunc(p_charge),
    'A fit keeps at most what it reserved.');
  IF p_charge < fit.price::numeric THEN
    PERFORM SCHEMA.dpgb_require(NOT SCHEMA.dpgb_restored_since(fit.fit_id),
      'The fit was unfinished when the ledger was restored, so it keeps its whole charge.');
    SELECT (body::jsonb ->> 'spent')::numeric, (body::jsonb ->> 'charged')::numeric INTO v_opened, v_charged
      FROM SCHEMA.dpgb_entries WHERE fit_id = fit.fit_id AND kind = 'OPENED' ORDER BY seq DESC LIMIT 1;
    -- amplification holds for all queries of a sample together (account_units.py)
    PERFORM SCHEMA.dpgb_require(v_itemised OR NOT v_pure OR acc.analysis = 'pure' OR NOT EXISTS (SELECT 1 FROM SCHEMA.dpgb_entries
      WHERE fit_id = fit.fit_id AND kind = 'OPENED' AND body ~ '"rows": ?[[]"sample"'),
      'A pure fit that opened a sample keeps its whole charge.');
    PERFORM SCHEMA.dpgb_require(CASE WHEN v_itemised THEN p_charge >= coalesce(v_charged, 0)
      ELSE SCHEMA.dpgb_covers(p_charge, coalesce(v_opened, 0), v_pure, acc.analysis) END,
      'The charge does not cover the rounds that the fit opened.');
  END IF;
  UPDATE SCHEMA.dpgb_accounts SET spent = (spent::numeric - fit.price::numeric + trunc(p_charge))::text
    WHERE name = fit.account;
  UPDATE SCHEMA.dpgb_fits SET state = p_kind, price = trunc(p_charge)::text WHERE fit_id = fit.fit_id;
  RETURN SCHEMA.dpgb_append(p_kind, fit.account, fit.fit_id,
    p_body || jsonb_build_object('charge', trunc(p_charge)::text));
END $$;

CREATE FUNCTION SCHEMA.dpgb_release(p_fit text, p_lease text, p_charge numeric, p_answers text, p_model text)
RETURNS SCHEMA.dpgb_head LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM SCHEMA.dpgb_require(length(p_answers) <= 200 AND length(p_model) <= 200, 'A fit ends with two digests.');
  RETURN SCHEMA.dpgb_end(SCHEMA.dpgb_unfinished(p_fit, coalesce(p_lease, '')), p_charge, 'RELEASED',
    jsonb_build_object('answers', p_answers, 'model', p_model));
END $$;

CREATE FUNCTION SCHEMA.dpgb_settle(p_fit text, p_charge numeric) RETURNS SCHEMA.dpgb_head
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN SCHEMA.dpgb_end(SCHEMA.dpgb_unfinished(p_fit, NULL), p_charge, 'SETTLED', '{}');
END $$;

-- ---- what only the owner does ---------------------------------------------------------------------------------------

CREATE FUNCTION SCHEMA.dpgb_open_account(p_name text, p_body jsonb) RETURNS SCHEMA.dpgb_head
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO SCHEMA.dpgb_accounts (name, epsilon, delta, analysis, cap, unit_id, spent, tau)
    VALUES (p_name, p_body ->> 'epsilon', p_body ->> 'delta', p_body ->> 'analysis', p_body ->> 'cap',
      p_body ->> 'unit_id', '0', '0.0');
  RETURN SCHEMA.dpgb_append('OPEN', p_name, '', p_body);
END $$;

CREATE FUNCTION SCHEMA.dpgb_restore(p_newest_known bigint) RETURNS SCHEMA.dpgb_head
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
  SELECT SCHEMA.dpgb_append('RESTORED', '', '', jsonb_build_object('newest_known', p_newest_known))
$$;

-- Nobody else may use any of them or the tables, unless `dpgb_dask.Ledger.grant` says so: neither PUBLIC, nor who was
-- given rights before there were functions, nor whom default privileges name.
DO $$
DECLARE
  given record;
BEGIN
  FOR given IN
    SELECT DISTINCT ours.name, CASE acl.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(acl.grantee)) END AS who
    FROM (
      SELECT 'FUNCTION ' || p.oid::regprocedure AS name, pronamespace AS place, proname AS called, proowner AS owner,
        coalesce(proacl, acldefault('f', proowner)) AS acl FROM pg_catalog.pg_proc AS p
      UNION ALL
      SELECT 'TABLE ' || c.oid::regclass, relnamespace, relname, relowner, held.acl
      FROM pg_catalog.pg_class AS c, LATERAL (
        SELECT c.relacl UNION ALL SELECT attacl FROM pg_catalog.pg_attribute WHERE attrelid = c.oid) AS held(acl)
      WHERE relkind = 'r'
    ) AS ours, aclexplode(ours.acl) AS acl
    WHERE ours.place = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = current_schema())
      AND starts_with(ours.called, 'dpgb_') AND acl.grantee <> ours.owner
  LOOP
    EXECUTE 'REVOKE ALL ON ' || given.name || ' FROM ' || given.who || ' CASCADE';
  END LOOP;
END $$;
