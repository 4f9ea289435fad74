-- The schema of a store, version 1. The program replaces "@" by the name of the schema and a dot.
-- What must stay true: a document is locked before its writer gets a transaction number. The feed is in the order of
-- these numbers, so it has the changes of one document in their order. The rows of a document have all of its file.
-- A later version of the schema must rename whatever changes its meaning, above all `append`, `save`, `save_each` and
-- `remove`. Then a program that is open during the migration gets an error, and writes nothing more.

CREATE TABLE @meta (key text PRIMARY KEY, value text NOT NULL);
CREATE SEQUENCE @versions;
CREATE SEQUENCE @fences;

-- Adds the present timeline to a number. The result is greater than all numbers from before a standby was promoted,
-- which may lack the last ones. `server_abilities.py` replaces it, and `identity`, by what the server can do.
CREATE FUNCTION @in_timeline(number bigint) RETURNS bigint LANGUAGE sql AS $$ SELECT number $$;
-- Returns the identity of this database. One that was restored from its dump has another.
CREATE FUNCTION @identity() RETURNS text LANGUAGE sql STABLE AS $$ SELECT '' $$;

-- `version` changes with every write, `tag` with every write but an append, `era` when entries change otherwise. `head`
-- has the lines of the file before the context, and `rest` those from there to the history. `data` is the file of a
-- document without entries. `inner_bytes` is the size of the entries in the file, each with its comma and newline.
-- `channel` is the name of the channel that a conversation is, and `forked_from` the source of a fork: a writer finds
-- conversations by them, without the index.
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
    channel text COLLATE "C",
    forked_from text COLLATE "C",
    rest text NOT NULL DEFAULT '',
    data bytea,
    UNIQUE (kind, id)
) WITH (fillfactor = 70);
CREATE INDEX documents_channel ON @documents (channel) WHERE channel IS NOT NULL;
CREATE INDEX documents_forked_from ON @documents (forked_from) WHERE forked_from IS NOT NULL;

-- `message` is the message's id, which can have any character.
CREATE TABLE @entries (
    doc bigint NOT NULL,
    place integer NOT NULL,
    message bytea NOT NULL,
    body text NOT NULL,
    PRIMARY KEY (doc, place)
);
CREATE INDEX entries_message ON @entries (message, doc);

-- The feed, in the order of `place`, which is the transaction with its timeline. `event` is the kind of a change of a
-- conversation, with its further fields in `told`. It is empty for documents of other kinds. The last bits of `seq` are
-- random: in a database that was restored from a copy of its files, both numbers are used again, and a cursor must not
-- be taken for one of another change.
CREATE SEQUENCE @seqs;
CREATE TABLE @changes (
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    place bigint NOT NULL DEFAULT @in_timeline(pg_current_xact_id()::text::bigint),
    seq bigint NOT NULL DEFAULT nextval('@seqs') << 20 | (random() * 1048575)::bigint,
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
-- `holder` is NULL if the lease was released.
CREATE TABLE @leases (
    name text PRIMARY KEY,
    holder uuid,
    fence bigint NOT NULL,
    expires timestamptz NOT NULL,
    who text NOT NULL,
    about text NOT NULL
);
-- The listeners that wait for notices. Without any, writers send none.
CREATE TABLE @listeners (id uuid PRIMARY KEY, expires timestamptz NOT NULL);
CREATE TABLE @beats (session text PRIMARY KEY, at timestamptz NOT NULL);

-- Returns a time as the format writes it.
CREATE FUNCTION @stamp(at timestamptz) RETURNS text LANGUAGE sql STABLE AS
$$ SELECT to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') $$;

-- Returns the size of the file, in bytes.
CREATE FUNCTION @size(d @documents) RETURNS bigint LANGUAGE sql IMMUTABLE AS
$$ SELECT CASE WHEN d.data IS NOT NULL THEN octet_length(d.data)
    ELSE 20 + octet_length(d.head) + CASE WHEN d.rest = '' THEN 0 ELSE 2 + octet_length(d.rest) END
        + CASE WHEN d.entries = 0 THEN 2 ELSE 4 + d.inner_bytes END END $$;

-- Returns the number by which a document is locked. Two documents with the same number only wait for each other.
CREATE FUNCTION @key(p_kind text, p_id text) RETURNS bigint LANGUAGE sql IMMUTABLE AS
$$ SELECT hashtextextended('@' || p_kind || '/' || p_id, 0) $$;

-- Locks a document, and shares locks on those that the write depends on. All writers lock in the same order.
CREATE FUNCTION @lock(p_kind text, p_id text, p_kinds text[], p_ids text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    is_done boolean;
    l record;
BEGIN
    IF p_kinds IS NULL THEN
        is_done := pg_advisory_xact_lock(@key(p_kind, p_id)) IS NULL;  -- Quicker than PERFORM.
        RETURN;
    END IF;
    FOR l IN SELECT key, bool_and(is_shared) AS is_shared FROM (
        SELECT @key(p_kind, p_id), false UNION ALL
        SELECT @key(kind, id), true FROM unnest(p_kinds, p_ids) AS r (kind, id)
    ) AS k (key, is_shared) GROUP BY key ORDER BY key LOOP
        IF l.is_shared THEN
            PERFORM pg_advisory_xact_lock_shared(l.key);
        ELSE
            PERFORM pg_advisory_xact_lock(l.key);
        END IF;
    END LOOP;
END $$;

-- Returns why a write is refused: `lease` if a lease was lost, `changed` if a document that was read has changed.
CREATE FUNCTION @refusal(
    p_kinds text[], p_ids text[], p_versions bigint[], p_leases text[], p_fences bigint[]
) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1 .. coalesce(cardinality(p_leases), 0) LOOP
        -- Whoever takes the lease over waits until this write is done.
        PERFORM FROM @leases
            WHERE name = p_leases[i] AND fence = p_fences[i] AND expires > clock_timestamp() FOR SHARE;
        IF NOT FOUND THEN
            RETURN 'lease';
        END IF;
    END LOOP;
    IF EXISTS (
        SELECT FROM unnest(p_kinds, p_ids, p_versions) AS r (kind, id, version)
        LEFT JOIN @documents AS d ON d.kind = r.kind AND d.id = r.id
        WHERE coalesce(d.version, 0) <> r.version
    ) THEN
        RETURN 'changed';
    END IF;
    RETURN NULL;
END $$;

-- Returns how many of these messages a document has.
CREATE FUNCTION @found(p_doc bigint, p_messages bytea[]) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT count(*) FROM unnest(p_messages) AS m
        WHERE EXISTS (SELECT FROM @entries WHERE doc = p_doc AND message = m));
END $$;

-- A write of a document: `DocumentWrite` in `writing.py` describes the fields. To send them as one value is quickest.
CREATE TYPE @writing AS (
    kind text, id text, write uuid, tag bigint, version bigint, exact boolean, active boolean,
    start integer, places integer[], inner_bytes bigint, messages bytea[], bodies text[], time text, stamp text,
    head text, channel text, forked_from text, rest text, ends_active boolean, events text[], told text[], trash_kind text, trash_token text,
    kinds text[], ids text[], versions bigint[], leases text[], fences bigint[]
);

-- Writes a document. If others have only appended since the version of the write, and it is not `exact`, its messages
-- are appended after theirs. Then the function moves its times forward, so that no time is earlier than the one before.
-- `p_again`: the write was sent before, and the answer was lost. A plain append takes one UPDATE, whose conditions tell
-- whether it may be done, and two new rows. The reason of a refusal is only looked for if the UPDATE changed no row.
CREATE FUNCTION @save(p_write json, p_again boolean, p_data bytea, p_trash bytea) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    w @writing := json_populate_record(NULL::@writing, p_write);
    d @documents%ROWTYPE;
    is_done boolean := @lock(w.kind, w.id, w.kinds, w.ids) IS NULL;
    status text;
    is_append constant boolean := w.start IS NULL AND w.places IS NULL;
    added integer := CASE WHEN w.places IS NULL THEN coalesce(cardinality(w.bodies), 0) ELSE 0 END;
    next bigint := @in_timeline(nextval('@versions'));
    line constant text := E'\n      "timestamp": "';
BEGIN
    IF w.kinds IS NOT NULL THEN
        status := @refusal(w.kinds, w.ids, w.versions, w.leases, w.fences);
    END IF;
    IF added <> 1 THEN
        w.inner_bytes := coalesce(w.inner_bytes, (SELECT sum(octet_length(b) + 2) FROM unnest(w.bodies) AS b), 0);
    END IF;
    LOOP
        IF status IS NULL AND w.tag <> 0 THEN
            UPDATE @documents AS o SET
                version = next,
                tag = CASE WHEN w.head IS NULL AND p_data IS NULL THEN tag ELSE next END,
                era = CASE WHEN is_append THEN era ELSE next END,
                entries = coalesce(w.start, entries) + added,
                inner_bytes = CASE WHEN is_append THEN inner_bytes ELSE 0 END
                    + coalesce(w.inner_bytes, octet_length(w.bodies[1]) + 2),
                updated_at = coalesce(w.stamp, updated_at),
                newest = greatest(newest, w.stamp),
                time = greatest(time, w.time),
                ends_active = coalesce(w.ends_active, ends_active),
                write = w.write,
                head = coalesce(w.head, head),
                channel = CASE WHEN w.head IS NULL THEN channel ELSE w.channel END,
                forked_from = CASE WHEN w.head IS NULL THEN forked_from ELSE w.forked_from END,
                rest = coalesce(w.rest, rest),
                data = p_data
            WHERE kind = w.kind AND id = w.id AND write <> w.write AND (
                version = w.version OR (
                    NOT w.exact AND tag = w.tag AND ends_active = w.active AND newest < w.stamp AND time <= w.time
                    AND added = 1
                    AND NOT EXISTS (SELECT FROM @entries WHERE doc = o.num AND message = w.messages[1])
                )
            ) RETURNING * INTO d;
            EXIT WHEN d.num IS NOT NULL;
        END IF;
        SELECT * INTO d FROM @documents WHERE kind = w.kind AND id = w.id;
        IF d.write = w.write OR (
            p_again AND w.tag <> 0 AND is_append AND @found(d.num, w.messages)
                = nullif(cardinality(w.messages), 0)
        ) THEN
            status := 'done';
            IF w.tag <> 0 AND is_append AND cardinality(w.messages) > 0 THEN
                -- As that write left it. Others may have appended since, so it is no version to go on from.
                SELECT max(place) + 1 INTO d.entries FROM @entries WHERE doc = d.num AND message = ANY (w.messages);
                d.version := 0;
            END IF;
        ELSIF status IS NULL AND d.num IS NULL AND w.tag = 0 THEN
            INSERT INTO @documents (
                kind, id, version, tag, era, entries, inner_bytes, updated_at, newest, time, ends_active, write, head,
                channel, forked_from, rest, data
            ) VALUES (
                w.kind, w.id, next, next, next, added, coalesce(w.inner_bytes, octet_length(w.bodies[1]) + 2),
                coalesce(w.stamp, ''), coalesce(w.stamp, ''), coalesce(w.time, ''), coalesce(w.ends_active, false),
                w.write, coalesce(w.head, ''), w.channel, w.forked_from, coalesce(w.rest, ''), p_data
            ) RETURNING * INTO d;
            EXIT;
        ELSIF d.num IS NULL OR w.tag = 0 THEN
            status := coalesce(status, CASE WHEN w.tag = 0 THEN 'taken' ELSE 'gone' END);
        ELSIF d.version <> w.version AND (
            d.tag <> w.tag OR w.exact OR d.ends_active <> w.active OR @found(d.num, w.messages) > 0
        ) THEN
            status := coalesce(status, 'changed');
        END IF;
        IF status IS NOT NULL THEN
            RETURN json_build_array(status, d.version, d.tag, d.era, d.entries, @size(d), d.updated_at, d.newest,
                d.time, d.ends_active, d.head);
        END IF;
        -- Only times are in the way: no message is earlier than the one before it.
        w.version := d.version;
        IF w.stamp <= d.newest THEN
            w.stamp := @stamp(d.newest::timestamptz + interval '1 millisecond');
        END IF;
        IF w.time < d.time THEN
            w.bodies := ARRAY(SELECT replace(body, line || w.time || '"', line || d.time || '"')
                FROM unnest(w.bodies) WITH ORDINALITY AS b (body, i) ORDER BY i);
        END IF;
    END LOOP;
    IF w.start IS NOT NULL THEN  -- The entries from here on are replaced.
        DELETE FROM @entries WHERE doc = d.num AND place >= w.start;
    ELSIF w.places IS NOT NULL THEN
        UPDATE @entries AS e SET message = n.message, body = n.body
            FROM unnest(w.places, w.messages, w.bodies) AS n (place, message, body)
            WHERE e.doc = d.num AND e.place = n.place;
    END IF;
    IF added = 1 THEN  -- Nearly always; without a set it takes less.
        INSERT INTO @entries VALUES (d.num, d.entries - 1, w.messages[1], w.bodies[1]);
    ELSIF added > 1 THEN
        INSERT INTO @entries SELECT d.num, d.entries - added + i - 1, m, b
            FROM unnest(w.messages, w.bodies) WITH ORDINALITY AS e (m, b, i);
    END IF;
    IF w.trash_token IS NOT NULL THEN
        INSERT INTO @trash (token, kind, id, data) VALUES (w.trash_token, w.trash_kind, w.id, p_trash);
    END IF;
    FOR i IN 1 .. cardinality(w.events) LOOP
        INSERT INTO @changes (kind, id, event, told, count, tag, was)
            VALUES (w.kind, w.id, w.events[i], w.told[i], d.entries, d.tag, w.tag);
    END LOOP;
    RETURN json_build_array('ok', d.version, d.tag, d.era, d.entries, @size(d), d.updated_at, d.newest, d.time,
        d.ends_active, NULL);
END $$;

-- Does several writes in one transaction, and returns the answer of `save` to each. It waits for no lock: a write whose
-- locks are taken is not done, and its answer is `busy`, and whether it may have been done before. `p_locks` has the
-- number of a write, a kind and an id, and whether the lock is shared. All locks come before the first write.
CREATE FUNCTION @save_each(p_writes json, p_locks json, p_again boolean) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
    busy integer[] := ARRAY(
        SELECT (l ->> 0)::integer FROM json_array_elements(p_locks) AS l WHERE NOT CASE WHEN (l ->> 3)::boolean
            THEN pg_try_advisory_xact_lock_shared(@key(l ->> 1, l ->> 2))
            ELSE pg_try_advisory_xact_lock(@key(l ->> 1, l ->> 2)) END
    );
    number integer := 0;
    write json;
BEGIN
    FOR write IN SELECT json_array_elements(p_writes) LOOP
        IF number = ANY (busy) THEN
            RETURN NEXT json_build_array('busy', p_again);
        ELSE
            RETURN NEXT @save(write, p_again, NULL, NULL);
        END IF;
        number := number + 1;
    END LOOP;
END $$;

-- Appends one message, if that takes no more than an UPDATE and two new rows, and returns the new version, the number
-- of entries and the size. Otherwise it writes nothing and returns NULL, and `save` does it or tells why not. It has the
-- conditions of `save`. To send the values one by one is quicker than to parse a JSON object.
CREATE FUNCTION @append(
    p_again boolean, p_kind text, p_id text, p_write uuid, p_tag bigint, p_version bigint, p_exact boolean,
    p_active boolean, p_message bytea, p_body text, p_time text, p_stamp text, p_ends_active boolean, p_event text,
    p_told text, OUT o_again boolean, OUT o_version bigint, OUT o_entries integer, OUT o_size bigint
) LANGUAGE plpgsql AS $$
DECLARE
    is_done boolean := pg_advisory_xact_lock(@key(p_kind, p_id)) IS NULL;
    next bigint := @in_timeline(nextval('@versions'));
    l_doc bigint;
BEGIN
    o_again := p_again;
    UPDATE @documents AS o SET
        version = next,
        entries = entries + 1,
        inner_bytes = inner_bytes + octet_length(p_body) + 2,
        updated_at = p_stamp,
        newest = greatest(newest, p_stamp),
        time = greatest(time, p_time),
        ends_active = p_ends_active,
        write = p_write
    WHERE kind = p_kind AND id = p_id AND (
        version = p_version OR (
            NOT p_exact AND tag = p_tag AND ends_active = p_active AND newest < p_stamp AND time <= p_time
            AND NOT EXISTS (SELECT FROM @entries WHERE doc = o.num AND message = p_message)
        )
    ) RETURNING num, entries, @size(o) INTO l_doc, o_entries, o_size;
    IF l_doc IS NULL THEN
        RETURN;
    END IF;
    INSERT INTO @entries VALUES (l_doc, o_entries - 1, p_message, p_body);
    INSERT INTO @changes (kind, id, event, told, count, tag, was)
        VALUES (p_kind, p_id, p_event, p_told, o_entries, p_tag, p_tag);
    o_version := next;
END $$;

-- Deletes changes that are older than an interval. The owner of the database calls it. It deletes a part in each
-- transaction, as a long one would hold up the feed. Changes that are not in the index yet stay, because the index
-- finds them by these rows. Readers with an older cursor must begin anew.
CREATE PROCEDURE @prune(p_older interval) LANGUAGE plpgsql AS $$
BEGIN
    LOOP
        WITH old AS (
            DELETE FROM @changes WHERE ctid = ANY (ARRAY(
                SELECT c.ctid FROM @changes AS c, @indexed WHERE at < now() - p_older
                    AND (snapshot IS NULL OR pg_visible_in_snapshot(xid, snapshot::pg_snapshot)) LIMIT 20000
            )) RETURNING place
        )
        UPDATE @meta SET value = greatest(value::bigint, (SELECT max(place) FROM old))
            WHERE key = 'pruned' AND EXISTS (SELECT FROM old);
        EXIT WHEN NOT FOUND;
        COMMIT;
    END LOOP;
END $$;

-- Moves a document to the trash.
CREATE FUNCTION @remove(
    p_kind text, p_id text,
    p_kinds text[], p_ids text[], p_versions bigint[], p_leases text[], p_fences bigint[],
    p_version bigint, p_token text, p_data bytea, p_event text
) RETURNS TABLE (o_status text, o_at text) LANGUAGE plpgsql AS $$
DECLARE
    d @documents%ROWTYPE;
    kept timestamptz;
    status text;
BEGIN
    PERFORM @lock(p_kind, p_id, p_kinds, p_ids);
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

-- The index. It is derived: a query first updates it under a lock. `generation` changes when the index is built anew.
-- `snapshot` shows the transactions that are indexed, and is NULL until the index is complete. `texts` is the number of
-- all messages and `text_words` that of their words; `titles` and `title_words` are those of titles with tags.
CREATE TABLE @indexed (
    generation text NOT NULL,
    snapshot text,
    stamp bigint NOT NULL,
    texts bigint NOT NULL DEFAULT 0,
    text_words bigint NOT NULL DEFAULT 0,
    titles bigint NOT NULL DEFAULT 0,
    title_words bigint NOT NULL DEFAULT 0
);
INSERT INTO @indexed VALUES (left(md5(gen_random_uuid()::text), 16), NULL, 0);

-- A row for every conversation, also for a deleted one (`gone`), as it can be restored. `stamp` is that of the
-- transaction that wrote the row, `version`, `era` and `tag` are those of the document. `head` has the fields of a
-- `Head` as a JSON array, `tags` and `lock` are JSON. `entries`, `words` and `tokens` are sums. `linear`: no message
-- names a parent, and the document names no current message.
CREATE TABLE @capsules (
    num bigint PRIMARY KEY,
    id text COLLATE "C" NOT NULL UNIQUE,
    stamp bigint NOT NULL,
    gone integer NOT NULL,
    version bigint,
    era bigint,
    size bigint,
    tag text NOT NULL,
    head text,
    title text NOT NULL,
    updated_at text,
    updated_ms bigint NOT NULL,
    mode text,
    source text NOT NULL,
    tags text NOT NULL,
    archived integer,
    lock text,
    forked text COLLATE "C",
    damaged text NOT NULL,
    entries integer NOT NULL,
    words integer NOT NULL,
    tokens integer NOT NULL,
    linear integer NOT NULL
);
CREATE INDEX capsules_stamped ON @capsules (stamp);
CREATE INDEX capsules_forked ON @capsules (forked) WHERE forked IS NOT NULL;
CREATE INDEX capsules_locked ON @capsules (num) WHERE lock IS NOT NULL;
CREATE INDEX capsules_latest ON @capsules (updated_ms DESC, version DESC, id DESC) WHERE gone = 0;
CREATE TABLE @members (agent text COLLATE "C" NOT NULL, capsule bigint NOT NULL, PRIMARY KEY (agent, capsule));
CREATE INDEX members_in ON @members (capsule);

-- `at` is the position in the history, from 0, and `front` the digest of all ids up to this message. `parent` is as in
-- the document: NULL for the entry before, '' for a root. `words` are counted by spaces, and `length` as the full-text
-- search splits the texts, with those of tool calls. `active`: it is on the active branch. `digest` is that of its bytes.
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
    length integer NOT NULL,
    active integer NOT NULL,
    digest bigint NOT NULL
);
CREATE INDEX messages_in_order ON @messages (capsule, at, sender, time_ms);
CREATE INDEX messages_by_id ON @messages (id);

-- The values that filters compare. `number` is the value if it is not a text.
CREATE TABLE @facts (
    message bigint NOT NULL,
    path text COLLATE "C" NOT NULL,
    type integer NOT NULL,
    value text COLLATE "C" NOT NULL,
    number numeric
);
CREATE INDEX facts_of ON @facts (message);
CREATE INDEX facts_at ON @facts (path, type, message);

-- The words of contents (`vector`), of contents with tool calls (`tools`), and in `names` of titles with tags, with
-- their number.
CREATE TABLE @words (num bigint PRIMARY KEY, vector tsvector NOT NULL, tools tsvector);
CREATE INDEX words_in ON @words USING gin (vector) WITH (gin_pending_list_limit = 256);
CREATE INDEX words_in_tools ON @words USING gin (tools) WITH (gin_pending_list_limit = 256);
CREATE TABLE @names (num bigint PRIMARY KEY, vector tsvector NOT NULL, length integer NOT NULL);
CREATE INDEX names_in ON @names USING gin (vector) WITH (gin_pending_list_limit = 256);

-- Returns the content in the body of an entry. The JSON of PostgreSQL allows neither NUL nor a lone surrogate.
CREATE FUNCTION @content(p_body text) RETURNS text LANGUAGE sql IMMUTABLE AS
$$ SELECT coalesce(regexp_replace(
    p_body, '(?<!\\)((?:\\\\)*)\\u(?:0000|[dD][89a-fA-F][0-9a-fA-F]{2})', '\1\\ufffd', 'g'
)::json ->> 'content', '') $$;
