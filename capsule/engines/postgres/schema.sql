-- The schema of a store, version 1. "@" stands for the name of the schema and a dot.
-- What must stay true: a document is locked before its writer gets a transaction number, so that the feed, which is in
-- the order of these numbers, has the changes of one document in their order. What a file would have, the rows have.
-- A later version gives other names to what then means something else, `save` and `remove` above all: a program that is
-- open while another brings the schema to that version is refused, and writes nothing more.

CREATE TABLE @meta (key text PRIMARY KEY, value text NOT NULL);
CREATE SEQUENCE @versions;
CREATE SEQUENCE @fences;

-- A number as of the present timeline: greater than any of before a standby was promoted, which may lack the last ones.
CREATE FUNCTION @in_timeline(number bigint) RETURNS bigint LANGUAGE sql AS
$$ SELECT ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint << 40 | number $$;

-- `version` changes with every write, `tag` with every write but an append, `era` when entries change otherwise.
-- `head` and `rest` are what stands in the file before the context, and from there to the history; `data` is the whole
-- of a document without entries. `inner_bytes` is what the entries take in the file, each with its comma and newline.
CREATE TABLE @documents (
    num bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    tag bigint NOT NULL,
    era bigint NOT NULL,
    entries integer NOT NULL DEFAULT 0,
    inner_bytes bigint NOT NULL DEFAULT 0,
    updated_at text COLLATE "C" NOT NULL DEFAULT '',
    newest text COLLATE "C" NOT NULL DEFAULT '',
    time text COLLATE "C" NOT NULL DEFAULT '',
    ends_active boolean NOT NULL DEFAULT false,
    write uuid NOT NULL,
    head text NOT NULL DEFAULT '',
    rest text NOT NULL DEFAULT '',
    data bytea,
    UNIQUE (kind, id)
) WITH (fillfactor = 70);

-- `message` is the message's id, which may hold any character.
CREATE TABLE @entries (
    doc bigint NOT NULL,
    place integer NOT NULL,
    message bytea NOT NULL,
    body text NOT NULL,
    PRIMARY KEY (doc, place)
);
CREATE INDEX entries_message ON @entries (message, doc);

-- The feed, in the order of `place`, which is the transaction as of its timeline. `event` is a kind of change of a
-- conversation, with its further fields in `told`; empty: of another kind.
CREATE TABLE @changes (
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    place bigint NOT NULL DEFAULT @in_timeline(pg_current_xact_id()::text::bigint),
    seq bigint GENERATED ALWAYS AS IDENTITY,
    kind text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    event text NOT NULL,
    told text NOT NULL,
    count integer NOT NULL,
    tag bigint NOT NULL,
    was bigint NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (xid, seq)
);

CREATE INDEX changes_told ON @changes (place, seq) WHERE event <> '';

CREATE TABLE @trash (
    num bigint GENERATED ALWAYS AS IDENTITY,
    token text PRIMARY KEY,
    kind text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    data bytea NOT NULL
);
CREATE TABLE @files (
    folder text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (folder, name)
);
CREATE TABLE @leases (
    name text PRIMARY KEY,
    holder uuid NOT NULL,
    fence bigint NOT NULL,
    expires timestamptz NOT NULL,
    who text NOT NULL,
    about text NOT NULL
);
-- Who waits for notices: without any, writers give none.
CREATE TABLE @listeners (id uuid PRIMARY KEY, expires timestamptz NOT NULL);
CREATE TABLE @beats (session text PRIMARY KEY, at timestamptz NOT NULL);

-- A time as the format writes it.
CREATE FUNCTION @stamp(at timestamptz) RETURNS text LANGUAGE sql STABLE AS
$$ SELECT to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') $$;

-- The bytes of the file.
CREATE FUNCTION @size(d @documents) RETURNS bigint LANGUAGE sql IMMUTABLE AS
$$ SELECT CASE WHEN d.data IS NOT NULL THEN octet_length(d.data)
    ELSE 20 + octet_length(d.head) + CASE WHEN d.rest = '' THEN 0 ELSE 2 + octet_length(d.rest) END
        + CASE WHEN d.entries = 0 THEN 2 ELSE 4 + d.inner_bytes END END $$;

-- Locks documents in the order given, which is the same for all writers.
CREATE FUNCTION @lock(p_locks bigint[], p_shared boolean[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    is_done boolean;
BEGIN
    FOR i IN 1 .. cardinality(p_locks) LOOP
        IF p_shared[i] THEN
            is_done := pg_advisory_xact_lock_shared(p_locks[i]) IS NULL;
        ELSE
            is_done := pg_advisory_xact_lock(p_locks[i]) IS NULL;  -- Quicker than PERFORM.
        END IF;
    END LOOP;
END $$;

-- What keeps a write from being done: `lease`: a lease was lost; `changed`: a document that was read is another one.
CREATE FUNCTION @refusal(
    p_kinds text[], p_ids text[], p_versions bigint[], p_leases text[], p_fences bigint[]
) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1 .. cardinality(p_leases) LOOP
        -- Whoever takes the lease over waits until this write is done.
        PERFORM FROM @leases
            WHERE name = p_leases[i] AND fence = p_fences[i] AND expires > clock_timestamp() FOR SHARE;
        IF NOT FOUND THEN
            RETURN 'lease';
        END IF;
    END LOOP;
    IF cardinality(p_kinds) > 0 AND EXISTS (
        SELECT FROM unnest(p_kinds, p_ids, p_versions) AS r (kind, id, version)
        LEFT JOIN @documents AS d ON d.kind = r.kind AND d.id = r.id
        WHERE coalesce(d.version, 0) <> r.version
    ) THEN
        RETURN 'changed';
    END IF;
    RETURN NULL;
END $$;

-- Every write of a document but its removal. An append that was decided on an earlier version goes behind what others
-- appended since (`p_exact` false), if only that changed; then the database sees to it that no time goes back. `p_from`: entries from this place on are replaced. NULL of a
-- column: as it is. `p_again`: the answer to an earlier try was lost.
CREATE FUNCTION @save(
    p_kind text, p_id text, p_write uuid, p_again boolean, p_locks bigint[], p_shared boolean[],
    p_kinds text[], p_ids text[], p_versions bigint[], p_leases text[], p_fences bigint[],
    p_tag bigint, p_version bigint, p_exact boolean, p_active boolean, p_from integer,
    p_messages bytea[], p_bodies text[], p_inner bigint, p_time text, p_stamp text,
    p_head text, p_rest text, p_ends_active boolean, p_data bytea,
    p_trash_kind text, p_trash_token text, p_trash_data bytea, p_events text[], p_told text[]
) RETURNS TABLE (
    o_status text, o_version bigint, o_tag bigint, o_era bigint, o_entries integer, o_size bigint, o_updated_at text,
    o_newest text, o_time text, o_ends_active boolean, o_head text
) LANGUAGE plpgsql AS $$
DECLARE
    d @documents%ROWTYPE;
    was bigint := p_tag;
    is_there boolean;
    status text;
    next bigint;
    start integer;
    stamp text := p_stamp;
    bodies text[] := p_bodies;
    line constant text := E'\n      "timestamp": "';
BEGIN
    PERFORM @lock(p_locks, p_shared);
    SELECT * INTO d FROM @documents WHERE kind = p_kind AND id = p_id;
    is_there := FOUND;
    IF is_there AND d.write = p_write THEN
        status := 'done';
    ELSIF is_there AND p_again AND p_from IS NULL AND cardinality(p_messages) > 0 AND p_tag <> 0 AND NOT EXISTS (
        SELECT FROM unnest(p_messages) AS m
        WHERE NOT EXISTS (SELECT FROM @entries WHERE doc = d.num AND message = m)
    ) THEN
        status := 'done';
    ELSIF NOT is_there AND p_tag <> 0 THEN
        status := 'gone';
    ELSIF is_there AND p_tag = 0 THEN
        status := 'taken';
    ELSIF is_there AND d.version <> p_version AND (
        d.tag <> p_tag OR p_exact OR d.ends_active <> p_active OR EXISTS (
            SELECT FROM @entries WHERE doc = d.num AND message = ANY (p_messages)
        )
    ) THEN
        status := 'changed';
    ELSIF cardinality(p_kinds) + cardinality(p_leases) > 0 THEN
        status := @refusal(p_kinds, p_ids, p_versions, p_leases, p_fences);
    END IF;
    IF status IS NULL THEN
        next := @in_timeline(nextval('@versions'));
        start := coalesce(p_from, d.entries, 0);
        IF is_there AND stamp = '' THEN
            stamp := d.updated_at;
        ELSIF is_there AND d.version <> p_version THEN
            IF stamp <= d.newest THEN
                stamp := @stamp(d.newest::timestamptz + interval '1 millisecond');
            END IF;
            IF p_time <> '' AND p_time < d.time THEN  -- No message is earlier than the one before it.
                bodies := ARRAY(SELECT replace(body, line || p_time || '"', line || d.time || '"')
                    FROM unnest(p_bodies) WITH ORDINALITY AS b (body, i) ORDER BY i);
            END IF;
        END IF;
        IF is_there THEN
            UPDATE @documents SET
                version = next,
                tag = CASE WHEN p_head IS NULL AND p_data IS NULL THEN tag ELSE next END,
                era = CASE WHEN p_from IS NULL THEN era ELSE next END,
                entries = start + cardinality(p_bodies),
                inner_bytes = CASE WHEN p_from IS NULL THEN inner_bytes ELSE 0 END + p_inner,
                updated_at = stamp,
                newest = greatest(newest, stamp),
                time = greatest(time, p_time),
                ends_active = coalesce(p_ends_active, ends_active),
                write = p_write,
                head = coalesce(p_head, head),
                rest = coalesce(p_rest, rest),
                data = p_data
            WHERE num = d.num RETURNING * INTO d;
        ELSE
            INSERT INTO @documents (
                kind, id, version, tag, era, entries, inner_bytes, updated_at, newest, time, ends_active, write, head,
                rest, data
            ) VALUES (
                p_kind, p_id, next, next, next, cardinality(p_bodies), p_inner, stamp, stamp, p_time,
                coalesce(p_ends_active, false), p_write, coalesce(p_head, ''), coalesce(p_rest, ''), p_data
            ) RETURNING * INTO d;
        END IF;
        IF p_from IS NOT NULL THEN
            DELETE FROM @entries WHERE doc = d.num AND place >= p_from;
        END IF;
        IF cardinality(p_bodies) = 1 THEN  -- Nearly always; without a set it takes less.
            INSERT INTO @entries VALUES (d.num, start, p_messages[1], bodies[1]);
        ELSIF cardinality(p_bodies) > 1 THEN
            INSERT INTO @entries SELECT d.num, start + i - 1, m, b
                FROM unnest(p_messages, bodies) WITH ORDINALITY AS e (m, b, i);
        END IF;
        IF p_trash_token IS NOT NULL THEN
            INSERT INTO @trash (token, kind, id, data) VALUES (p_trash_token, p_trash_kind, p_id, p_trash_data);
        END IF;
        FOR i IN 1 .. cardinality(p_events) LOOP
            INSERT INTO @changes (kind, id, event, told, count, tag, was)
                VALUES (p_kind, p_id, p_events[i], p_told[i], d.entries, d.tag, was);
        END LOOP;
        status := 'ok';
    END IF;
    IF status = 'done' AND p_tag <> 0 AND cardinality(p_messages) > 0 THEN
        -- As that write left it. Others may have appended since, so it is no version to go on from.
        SELECT max(place) + 1 INTO d.entries FROM @entries WHERE doc = d.num AND message = ANY (p_messages);
        d.version := 0;
    END IF;
    RETURN QUERY SELECT status, d.version, d.tag, d.era, d.entries, @size(d), d.updated_at, d.newest, d.time,
        d.ends_active, CASE WHEN status = 'done' THEN d.head END;
END $$;

-- Forgets changes that are older than this, for the owner of the database to call. Who is that far behind begins anew.
CREATE FUNCTION @prune(p_older interval) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    gone bigint;
BEGIN
    -- What is not in the index yet stays, as it is found by its change; without a snapshot it looks at everything.
    WITH old AS (
        DELETE FROM @changes USING @indexed WHERE at < now() - p_older
            AND (snapshot IS NULL OR pg_visible_in_snapshot(xid, snapshot::pg_snapshot)) RETURNING place
    )
    UPDATE @meta SET value = greatest(value::bigint, (SELECT max(place) FROM old))
        WHERE key = 'pruned' RETURNING value::bigint INTO gone;
    RETURN gone;
END $$;

-- Moves a document to the trash.
CREATE FUNCTION @remove(
    p_kind text, p_id text, p_locks bigint[], p_shared boolean[],
    p_kinds text[], p_ids text[], p_versions bigint[], p_leases text[], p_fences bigint[],
    p_version bigint, p_token text, p_data bytea, p_event text
) RETURNS TABLE (o_status text, o_at text) LANGUAGE plpgsql AS $$
DECLARE
    d @documents%ROWTYPE;
    kept timestamptz;
    status text;
BEGIN
    PERFORM @lock(p_locks, p_shared);
    SELECT at INTO kept FROM @trash WHERE token = p_token;
    IF FOUND THEN
        RETURN QUERY SELECT 'ok', @stamp(kept);
        RETURN;
    END IF;
    SELECT * INTO d FROM @documents WHERE kind = p_kind AND id = p_id;
    IF NOT FOUND THEN
        status := 'gone';
    ELSIF d.version <> p_version THEN
        status := 'changed';
    ELSE
        status := @refusal(p_kinds, p_ids, p_versions, p_leases, p_fences);
    END IF;
    IF status IS NULL THEN
        DELETE FROM @entries WHERE doc = d.num;
        DELETE FROM @documents WHERE num = d.num;
        INSERT INTO @trash (token, kind, id, data) VALUES (p_token, p_kind, p_id, p_data) RETURNING at INTO kept;
        INSERT INTO @changes (kind, id, event, told, count, tag, was)
            VALUES (p_kind, p_id, p_event, '{}', 0, @in_timeline(nextval('@versions')), d.tag);
        status := 'ok';
    END IF;
    RETURN QUERY SELECT status, @stamp(kept);
END $$;

-- The index. It is derived: whoever asks takes in what was written since, under a lock. `capsule/engines/index` says what
-- the columns are. `generation` changes when it is built anew; `snapshot` shows what is taken in, and is NULL until all
-- is; a row of `capsules` has the `stamp` of the transaction in which it was written.
CREATE TABLE @indexed (generation text NOT NULL, snapshot text, stamp bigint NOT NULL);
INSERT INTO @indexed VALUES (left(md5(gen_random_uuid()::text), 16), NULL, 0);
CREATE TABLE @capsules (
    num bigint PRIMARY KEY,
    id text COLLATE "C" NOT NULL UNIQUE,
    stamp bigint NOT NULL,
    version text, size bigint, written bigint, changed_ns bigint, racy integer NOT NULL DEFAULT 0,
    tag text NOT NULL DEFAULT '',
    head text,
    title text NOT NULL DEFAULT '', created_at text, updated_at text, updated_ms bigint NOT NULL DEFAULT 0,
    mode text, source text NOT NULL DEFAULT '', tags text NOT NULL DEFAULT '[]', archived integer, lock text,
    current text, forked text COLLATE "C", rest bigint, context bigint, damaged text NOT NULL DEFAULT '',
    digest bigint, history bigint, tail bigint,
    entries integer NOT NULL DEFAULT 0, words integer NOT NULL DEFAULT 0, tokens integer NOT NULL DEFAULT 0,
    linear integer NOT NULL DEFAULT 1, gone integer NOT NULL DEFAULT 0
);
CREATE INDEX capsules_stamped ON @capsules (stamp);
CREATE INDEX capsules_forked ON @capsules (forked) WHERE forked IS NOT NULL;
CREATE TABLE @members (agent text COLLATE "C" NOT NULL, capsule bigint NOT NULL, PRIMARY KEY (agent, capsule));
CREATE INDEX members_in ON @members (capsule);
CREATE TABLE @messages (
    num bigint PRIMARY KEY,
    capsule bigint NOT NULL,
    at integer NOT NULL,
    id text COLLATE "C" NOT NULL,
    front bigint NOT NULL,
    parent text,
    role text NOT NULL,
    sender text COLLATE "C",
    time_ms bigint NOT NULL,
    words integer NOT NULL,
    tokens integer NOT NULL,
    active integer NOT NULL,
    digest bigint NOT NULL
);
CREATE INDEX messages_in_order ON @messages (capsule, at, sender, time_ms);
CREATE INDEX messages_by_id ON @messages (id);
-- `number` is the value of what is no text.
CREATE TABLE @facts (
    message bigint NOT NULL,
    path text COLLATE "C" NOT NULL,
    type integer NOT NULL,
    value text COLLATE "C" NOT NULL,
    number numeric
);
CREATE INDEX facts_of ON @facts (message);
CREATE INDEX facts_at ON @facts (path, type, message);
-- The words of contents, and of contents with what is said to tools; of titles with tags.
CREATE TABLE @words (num bigint PRIMARY KEY, vector tsvector NOT NULL, tools tsvector);
CREATE INDEX words_in ON @words USING gin (vector) WITH (gin_pending_list_limit = 256);
CREATE INDEX words_in_tools ON @words USING gin (tools) WITH (gin_pending_list_limit = 256);
CREATE TABLE @names (num bigint PRIMARY KEY, vector tsvector NOT NULL);
CREATE INDEX names_in ON @names USING gin (vector) WITH (gin_pending_list_limit = 256);

-- The content in the body of an entry. JSON of PostgreSQL takes neither NUL nor half a pair of surrogates.
CREATE FUNCTION @content(p_body text) RETURNS text LANGUAGE sql IMMUTABLE AS
$$ SELECT regexp_replace(
    p_body, '(?<!\\)((?:\\\\)*)\\u(?:0000|[dD][89a-fA-F][0-9a-fA-F]{2})', '\1\\ufffd', 'g'
)::json ->> 'content' $$;
CREATE VIEW @texts AS
    SELECT m.*, coalesce(@content(e.body), '') AS content, CASE WHEN w.tools IS NOT NULL THEN e.body END AS tools
    FROM @messages AS m JOIN @words AS w ON w.num = m.num JOIN @capsules AS c ON c.num = m.capsule
    LEFT JOIN @documents AS d ON d.kind = 'conversations' AND d.id = c.id
    LEFT JOIN @entries AS e ON e.doc = d.num AND e.place = m.at;
