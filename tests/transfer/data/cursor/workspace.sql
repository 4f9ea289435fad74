BEGIN TRANSACTION;
CREATE TABLE ItemTable (key TEXT UNIQUE ON CONFLICT REPLACE, value BLOB);
INSERT INTO "ItemTable" VALUES('workbench.panel.aichat.view.aichat.chatdata','{"tabs": [{"tabId": "a2ce9ade-4eac-5705-adc0-98a2080b29c9", "chatTitle": "Old chat", "lastSendTime": 1763000000000, "bubbles": [{"type": "user", "id": "t1", "text": "What is a tab?"}, {"type": "ai", "id": "t2", "rawText": "An old chat.", "modelType": "gpt-4"}]}]}');
INSERT INTO "ItemTable" VALUES('composer.composerData','{"allComposers": [{"composerId": "9f819c60-36fd-58a9-b384-2a024491f81c", "name": "A failing test", "createdAt": 1765000000000}, {"composerId": "5d0b4d6a-0c6e-5b6e-9a53-7a2b3f0f9a11", "name": "Before 2025", "createdAt": 1733000000000, "conversation": [{"type": 1, "bubbleId": "w1", "text": "Rename it"}, {"type": 2, "bubbleId": "w2", "text": "Renamed."}]}], "selectedComposerId": "9f819c60-36fd-58a9-b384-2a024491f81c"}');
COMMIT;
