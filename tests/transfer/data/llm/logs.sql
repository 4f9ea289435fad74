CREATE TABLE _llm_migrations (name TEXT PRIMARY KEY, applied_at TEXT);
CREATE TABLE logs (id INTEGER PRIMARY KEY, model TEXT, prompt TEXT, system TEXT, prompt_json TEXT, options_json TEXT,
  response TEXT, response_json TEXT, reply_to_id INTEGER, chat_id INTEGER, duration_ms INTEGER, datetime_utc TEXT);
INSERT INTO logs VALUES (1, 'gpt-4', 'Two names for a pelican', 'Be short.', NULL, NULL, 'Percy, Penelope', NULL, NULL, NULL, 900, '2023-07-01T10:00:00.000001');
INSERT INTO logs VALUES (2, 'gpt-4', 'Another chat', NULL, NULL, NULL, 'Yes', NULL, NULL, NULL, 900, '2023-07-01T11:00:00.000001');
INSERT INTO logs VALUES (3, 'gpt-4', 'One more', 'Be short.', NULL, NULL, 'Pablo', NULL, 1, 1, 900, '2023-07-01T12:00:00.000001');
