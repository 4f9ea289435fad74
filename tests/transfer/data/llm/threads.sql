BEGIN TRANSACTION;
CREATE TABLE "_llm_migrations" (
   "name" TEXT PRIMARY KEY,
   "applied_at" TEXT
);
INSERT INTO "_llm_migrations" VALUES('m020_tool_results_attachments','2026-11-22 13:40:45.141436+00:00');
INSERT INTO "_llm_migrations" VALUES('m021_tool_results_exception','2026-11-22 13:40:45.160410+00:00');
INSERT INTO "_llm_migrations" VALUES('m022_response_reasoning','2026-11-22 13:40:45.172362+00:00');
INSERT INTO "_llm_migrations" VALUES('m023_message_store','2026-11-22 13:40:45.476519+00:00');
INSERT INTO "_llm_migrations" VALUES('m024_tool_instance_references','2026-11-22 13:40:45.584423+00:00');
INSERT INTO "_llm_migrations" VALUES('m025_turn_tools_instance_backfill','2026-11-22 13:40:45.591641+00:00');
INSERT INTO "_llm_migrations" VALUES('m026_message_tree_view','2026-11-22 13:40:45.612458+00:00');
INSERT INTO "_llm_migrations" VALUES('m027_turns_response_json','2026-11-22 13:40:45.623039+00:00');
CREATE TABLE "attachments" (
   "id" TEXT PRIMARY KEY,
   "type" TEXT,
   "path" TEXT,
   "url" TEXT,
   "content" BLOB
);
INSERT INTO "attachments" VALUES('a81547d497b340ae1377765a0cfe3704ef31316b39c34b9021ce4f924bebb668','image/png',NULL,NULL,X'89504E470D0A1A0A7878');
CREATE TABLE "conversations" (
   "id" TEXT PRIMARY KEY,
   "name" TEXT,
   "model" TEXT
);
CREATE TABLE "fragments" (
   "id" INTEGER PRIMARY KEY,
   "hash" TEXT,
   "content" TEXT,
   "datetime_utc" TEXT,
   "source" TEXT
);
INSERT INTO "fragments" VALUES(1,'75c9406eb99fc707f7605303003be1dc6062e917197177f6a52de14ec54393d5','A long note about tides.
A long note about tides.
A long note about tides.
','2026-11-22 13:40:45',NULL);
CREATE TABLE "messages" (
   "hash" TEXT PRIMARY KEY,
   "parent_hash" TEXT REFERENCES "messages"("hash"),
   "role" TEXT,
   "provider_metadata" TEXT
);
INSERT INTO "messages" VALUES('b2:20707d600a054a5ccdf13c35042960d8',NULL,'system',NULL);
INSERT INTO "messages" VALUES('b2:a805f0b5f136c0f73c515e4e43396eae','b2:20707d600a054a5ccdf13c35042960d8','user',NULL);
INSERT INTO "messages" VALUES('b2:4774bd97a3f0080c984a5d05c46ccc4f','b2:a805f0b5f136c0f73c515e4e43396eae','assistant',NULL);
INSERT INTO "messages" VALUES('b2:b8d364dc17b889fb52f9dc4fa206a436','b2:4774bd97a3f0080c984a5d05c46ccc4f','tool',NULL);
INSERT INTO "messages" VALUES('b2:9d8fbd529e6198384d873b41227e5e29','b2:b8d364dc17b889fb52f9dc4fa206a436','assistant',NULL);
INSERT INTO "messages" VALUES('b2:2ce40dfbf28aefb6f1c415bbd73dcfa9','b2:9d8fbd529e6198384d873b41227e5e29','user',NULL);
INSERT INTO "messages" VALUES('b2:3e51d31344b15921852177dcfa9c9bac','b2:2ce40dfbf28aefb6f1c415bbd73dcfa9','assistant',NULL);
INSERT INTO "messages" VALUES('b2:3f6381a35eaf6a3f8d29fcb32428ed7d','b2:9d8fbd529e6198384d873b41227e5e29','user',NULL);
INSERT INTO "messages" VALUES('b2:45a890619f4b351252b34d3fbed6212b','b2:3f6381a35eaf6a3f8d29fcb32428ed7d','assistant',NULL);
CREATE TABLE "part_attachments" (
   "part_id" INTEGER REFERENCES "parts"("id"),
   "attachment_id" TEXT REFERENCES "attachments"("id"),
   "order" INTEGER,
   PRIMARY KEY ("part_id", "attachment_id", "order")
);
INSERT INTO "part_attachments" VALUES(9,'a81547d497b340ae1377765a0cfe3704ef31316b39c34b9021ce4f924bebb668',0);
CREATE TABLE "part_fragments" (
   "part_id" INTEGER REFERENCES "parts"("id"),
   "fragment_id" INTEGER REFERENCES "fragments"("id"),
   "order" INTEGER,
   PRIMARY KEY ("part_id", "fragment_id", "order")
);
INSERT INTO "part_fragments" VALUES(8,1,0);
CREATE TABLE "parts" (
   "id" INTEGER PRIMARY KEY,
   "message_hash" TEXT REFERENCES "messages"("hash"),
   "position" INTEGER,
   "type" TEXT,
   "tool_name" TEXT,
   "text" TEXT,
   "payload" TEXT
);
INSERT INTO "parts" VALUES(1,'b2:20707d600a054a5ccdf13c35042960d8',0,'text',NULL,'Be short.',NULL);
INSERT INTO "parts" VALUES(2,'b2:a805f0b5f136c0f73c515e4e43396eae',0,'text',NULL,'When is high water in Brest?',NULL);
INSERT INTO "parts" VALUES(3,'b2:4774bd97a3f0080c984a5d05c46ccc4f',0,'reasoning',NULL,'I should look it up.',NULL);
INSERT INTO "parts" VALUES(4,'b2:4774bd97a3f0080c984a5d05c46ccc4f',1,'text',NULL,'Looking. ',NULL);
INSERT INTO "parts" VALUES(5,'b2:4774bd97a3f0080c984a5d05c46ccc4f',2,'tool_call','tides',NULL,'{"name": "tides", "arguments": {"port": "Brest"}, "tool_call_id": "c1"}');
INSERT INTO "parts" VALUES(6,'b2:b8d364dc17b889fb52f9dc4fa206a436',0,'tool_result','tides',NULL,'{"name": "tides", "output": "Brest: 6.2 m at 14:05", "tool_call_id": "c1"}');
INSERT INTO "parts" VALUES(7,'b2:9d8fbd529e6198384d873b41227e5e29',0,'text',NULL,'Answer 2 to the result',NULL);
INSERT INTO "parts" VALUES(8,'b2:2ce40dfbf28aefb6f1c415bbd73dcfa9',0,'text',NULL,NULL,'{"text_ref": [{"fragment": 1}, {"literal": "\nAnd tomorrow?"}]}');
INSERT INTO "parts" VALUES(9,'b2:2ce40dfbf28aefb6f1c415bbd73dcfa9',1,'attachment',NULL,NULL,'{"attachment": {"id": "a81547d497b340ae1377765a0cfe3704ef31316b39c34b9021ce4f924bebb668"}}');
INSERT INTO "parts" VALUES(10,'b2:3e51d31344b15921852177dcfa9c9bac',0,'text',NULL,'Answer 3 to A long note about tides.
A lon',NULL);
INSERT INTO "parts" VALUES(11,'b2:3f6381a35eaf6a3f8d29fcb32428ed7d',0,'text',NULL,'Forked question',NULL);
INSERT INTO "parts" VALUES(12,'b2:45a890619f4b351252b34d3fbed6212b',0,'text',NULL,'Forked answer',NULL);
CREATE TABLE "prompt_attachments" (
   "response_id" TEXT REFERENCES "responses"("id"),
   "attachment_id" TEXT REFERENCES "attachments"("id"),
   "order" INTEGER,
   PRIMARY KEY ("response_id", "attachment_id")
);
CREATE TABLE "prompt_fragments" (
   "response_id" TEXT REFERENCES "responses"("id"),
   "fragment_id" INTEGER REFERENCES "fragments"("id"),
   "order" INTEGER,
   PRIMARY KEY ("response_id", "fragment_id", "order")
);
CREATE TABLE "responses" (
   "id" TEXT PRIMARY KEY,
   "model" TEXT,
   "prompt" TEXT,
   "system" TEXT,
   "prompt_json" TEXT,
   "options_json" TEXT,
   "response" TEXT,
   "response_json" TEXT,
   "conversation_id" TEXT REFERENCES "conversations"("id"),
   "duration_ms" INTEGER,
   "datetime_utc" TEXT,
   "input_tokens" INTEGER,
   "output_tokens" INTEGER,
   "token_details" TEXT,
   "schema_id" TEXT REFERENCES "schemas"("id")
, "resolved_model" TEXT, "reasoning" TEXT);
CREATE TABLE "schemas" (
   "id" TEXT PRIMARY KEY,
   "content" TEXT
);
CREATE TABLE "system_fragments" (
   "response_id" TEXT REFERENCES "responses"("id"),
   "fragment_id" INTEGER REFERENCES "fragments"("id"),
   "order" INTEGER,
   PRIMARY KEY ("response_id", "fragment_id", "order")
);
CREATE TABLE "threads" (
   "id" TEXT PRIMARY KEY,
   "name" TEXT,
   "tip_message_hash" TEXT REFERENCES "messages"("hash"),
   "forked_from" TEXT REFERENCES "threads"("id"),
   "datetime_utc" TEXT
);
INSERT INTO "threads" VALUES('01m81qsrdz23vmfgkgcn1smcwq','When is high water in Brest?','b2:3e51d31344b15921852177dcfa9c9bac',NULL,'2026-11-22 13:40:45.638537+00:00');
INSERT INTO "threads" VALUES('01m81qsrfg6n54mk9vm4eq6m80','fork','b2:45a890619f4b351252b34d3fbed6212b','01m81qsrdz23vmfgkgcn1smcwq','2026-11-22 13:40:45.680899+00:00');
CREATE TABLE "tool_calls" (
   "id" INTEGER PRIMARY KEY,
   "response_id" TEXT REFERENCES "responses"("id"),
   "tool_id" INTEGER REFERENCES "tools"("id"),
   "name" TEXT,
   "arguments" TEXT,
   "tool_call_id" TEXT
);
CREATE TABLE "tool_instances" (
   "id" INTEGER PRIMARY KEY,
   "plugin" TEXT,
   "name" TEXT,
   "arguments" TEXT
);
CREATE TABLE "tool_instantiations" (
   "turn_id" TEXT REFERENCES "turns"("id"),
   "tool_call_id" TEXT,
   "instance_id" INTEGER REFERENCES "tool_instances"("id"),
   PRIMARY KEY ("turn_id", "tool_call_id")
);
CREATE TABLE "tool_results" (
   "id" INTEGER PRIMARY KEY,
   "response_id" TEXT REFERENCES "responses"("id"),
   "tool_id" INTEGER REFERENCES "tools"("id"),
   "name" TEXT,
   "output" TEXT,
   "tool_call_id" TEXT,
   "instance_id" INTEGER REFERENCES "tool_instances"("id")
, "exception" TEXT);
CREATE TABLE "tools" (
   "id" INTEGER PRIMARY KEY,
   "hash" TEXT,
   "name" TEXT,
   "description" TEXT,
   "input_schema" TEXT
, "plugin" TEXT);
INSERT INTO "tools" VALUES(1,'acdcb977a7d5ae3785c6129248fc514ae336f1d494e8a408cc729ad5777bd4fd','tides','Tides of a port','{"properties": {"port": {"type": "string"}}, "required": ["port"], "type": "object"}',NULL);
CREATE TABLE "turn_fragments" (
   "turn_id" TEXT REFERENCES "turns"("id"),
   "fragment_id" INTEGER REFERENCES "fragments"("id"),
   "order" INTEGER,
   "kind" TEXT,
   PRIMARY KEY ("turn_id", "fragment_id", "kind", "order")
);
INSERT INTO "turn_fragments" VALUES('01m81qsrezsjcsccb51mmkbcdr',1,0,'prompt');
CREATE TABLE "turn_tools" (
   "turn_id" TEXT REFERENCES "turns"("id"),
   "tool_id" INTEGER REFERENCES "tools"("id"),
   "instance_id" INTEGER REFERENCES "tool_instances"("id"),
   PRIMARY KEY ("turn_id", "tool_id")
);
INSERT INTO "turn_tools" VALUES('01m81qsre66yxvpsmkmns8sqbp',1,NULL);
INSERT INTO "turn_tools" VALUES('01m81qsrenq5qxy7t7v20sj3mg',1,NULL);
CREATE TABLE "turns" (
   "id" TEXT PRIMARY KEY,
   "thread_id" TEXT REFERENCES "threads"("id"),
   "parent_message_hash" TEXT REFERENCES "messages"("hash"),
   "tip_message_hash" TEXT REFERENCES "messages"("hash"),
   "model" TEXT,
   "resolved_model" TEXT,
   "options_json" TEXT,
   "schema_id" TEXT REFERENCES "schemas"("id"),
   "input_tokens" INTEGER,
   "output_tokens" INTEGER,
   "token_details" TEXT,
   "duration_ms" INTEGER,
   "datetime_utc" TEXT
, "response_json" TEXT);
INSERT INTO "turns" VALUES('01m81qsre66yxvpsmkmns8sqbp','01m81qsrdz23vmfgkgcn1smcwq','b2:a805f0b5f136c0f73c515e4e43396eae','b2:4774bd97a3f0080c984a5d05c46ccc4f','demo',NULL,NULL,NULL,10,1,NULL,0,'2026-11-22T13:40:45.638141+00:00',NULL);
INSERT INTO "turns" VALUES('01m81qsrenq5qxy7t7v20sj3mg','01m81qsrdz23vmfgkgcn1smcwq','b2:b8d364dc17b889fb52f9dc4fa206a436','b2:9d8fbd529e6198384d873b41227e5e29','demo',NULL,NULL,NULL,20,2,NULL,0,'2026-11-22T13:40:45.653854+00:00',NULL);
INSERT INTO "turns" VALUES('01m81qsrezsjcsccb51mmkbcdr','01m81qsrdz23vmfgkgcn1smcwq','b2:2ce40dfbf28aefb6f1c415bbd73dcfa9','b2:3e51d31344b15921852177dcfa9c9bac','demo',NULL,NULL,NULL,30,3,NULL,0,'2026-11-22T13:40:45.663992+00:00',NULL);
COMMIT;
