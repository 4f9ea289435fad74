"""`send`, `inbox`, `listen`, `history`, `message` and `mention`: the messages of agents.

What must stay true: a message is acknowledged only after it was printed, and after the command of
`--exec` for it has ended. Without --json a message is one line for a program, and no text in it can
begin another line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from capsule_cli.exits import end_at_once
from capsule_cli.public import complete_channel, open_agent_store, open_named_agent_store
from capsule_cli.shared.inputs import message_text
from capsule_cli.shared.options import (
    CONVERSATION,
    File,
    Id,
    argument,
    complete_agent,
    complete_id,
    flag,
    option,
    parse_duration,
    refuse_if,
)
from capsule_cli.shared.output import (
    as_json,
    global_options,
    in_terminal,
    one_line,
    print_answer,
    print_json,
    print_list,
    print_notice,
    print_rows,
    print_text,
)
from capsule_cli.shared.programs import run_command_for

if TYPE_CHECKING:
    from capsule.messaging.mail import Mail, Sent

_CONVERSATION = option(
    "--conversation ID", f"The conversation: {CONVERSATION}", ..., autocompletion=complete_id
)
Conversation = Annotated[str | None, _CONVERSATION]
Topic = Annotated[str | None, option("--topic TOPIC", "Take only messages of this topic.", ...)]
Thread = Annotated[
    str | None, option("--thread MESSAGE", "Take only messages in the thread of this message.", ...)
]
Message = Annotated[str, argument("ID", "The message: its id.", ...)]
#: Seconds of one wait, if `listen` waits without a limit.
_WAIT_S = 3600


def send(
    text: str | None = argument(
        "TEXT", "The text. Without it: the text of --file, or of standard input."
    ),
    to: str | None = option("--to AGENT", "Send it to this agent.", autocompletion=complete_agent),
    conversation: Conversation = None,
    channel: str | None = option(
        "--channel CHANNEL",
        "Send it into this channel: its name, or name@project.",
        autocompletion=complete_channel,
    ),
    topic: str | None = option("--topic TOPIC", "Name its topic."),
    thread: str | None = option(
        "--thread MESSAGE", "Put it into the thread of this message, by its id."
    ),
    reply_to: str | None = option(
        "--reply-to MESSAGE", "Name the message that it answers, by its id."
    ),
    intent: str | None = option("--intent WORD", "Name its purpose, in a word for programs."),
    priority: str | None = option("--priority WORD", "Name its urgency, in a word for programs."),
    confidence: float | None = option(
        "--confidence NUMBER", "Rate how sure you are, from 0 to 1.", min=0, max=1
    ),
    model: str | None = option("--model MODEL", "Name the model that wrote it."),
    idempotency_key: str | None = option(
        "--idempotency-key KEY",
        "If a message was sent there with this key before, write nothing and print its id.",
    ),
    file: File = None,
) -> None:
    """Send a message to an agent, a channel or a conversation and print its id. Without a
    recipient, send it to the only other agent.

    In the text, @name, @name@project and @all mention agents; --review, --action or --fyi after a
    name is a request to that agent. When the id is printed, the message is on the disk. --json
    reports for each recipient: stored, rung (a wake was delivered), or read.
    """
    refuse_if(
        sum(target is not None for target in (to, channel, conversation)) > 1,
        "give one target",
        "--to",
    )
    content = message_text(text, file)
    with open_agent_store() as (store, agent):
        receipt = store.messages.send(
            content,
            agent=agent,
            to=to,
            conversation=None if conversation is None else store.resolve(conversation),
            channel=channel,
            topic=topic,
            thread=thread,
            reply_to=reply_to,
            intent=intent,
            priority=priority,
            confidence=confidence,
            model=model,
            idempotency_key=idempotency_key,
        )
    for key, reason in (
        ("invalid", "is not a member there"),
        ("unknown", "is not an agent that you can find"),
    ):
        for name in receipt.mentions.get(key, ()):
            print_notice(f"{one_line(name)} was not mentioned: it {reason}")
    _print_sent(receipt, receipt.message)


def message_status(id: Message) -> None:
    """Print for each recipient of a message whether it was stored, rung (a wake was delivered), or
    read.
    """
    with open_named_agent_store() as store:
        receipt = store.messages.status(id)
    _print_sent(
        receipt, "\n".join(f"{name}\t{state}" for name, state in receipt.recipients.items())
    )


def message_edit(
    id: Message,
    text: str | None = argument(
        "TEXT", "The new text. Without it: the text of --file, or of standard input."
    ),
    file: File = None,
) -> None:
    """Change the text of a message. The former text goes to the trash; an agent changes only its
    own messages.
    """
    content = message_text(text, file)
    with open_named_agent_store() as store:
        edited = store.messages.edit(id, content)
    print_answer(
        {"id": edited.id, "editedAt": edited.edited_at}, f"{edited.id}: changed", line=True
    )


def message_react(id: Message, emoji: Annotated[str, argument("EMOJI", "The sign.", ...)]) -> None:
    """React to a message with an emoji, such as 👍, and print the id of the reaction."""
    with open_agent_store() as (store, agent):
        receipt = store.messages.react(id, emoji, agent=agent)
    _print_sent(receipt, receipt.message)


def _print_sent(receipt: Sent, plain: str) -> None:
    recipients = ", ".join(f"{name}: {state}" for name, state in receipt.recipients.items())
    print_answer(
        receipt.as_json(), f"{receipt.message}  {recipients}" if in_terminal() else plain, line=True
    )


def inbox(topic: Topic = None, thread: Thread = None) -> None:
    """List the conversations with unread messages: how many, from whom, and the last one. It marks
    nothing read.
    """
    with open_agent_store() as (store, agent):
        unread = store.messages.inbox(agent=agent, topic=topic, thread=thread)
    rows = [
        (
            item.id,
            str(item.unread),
            ",".join(item.senders),
            item.last.timestamp,
            item.name,
            item.last.content,
        )
        for item in unread.conversations
    ]
    columns = ("id", "unread", "from", "time", "title", "text")
    print_list(unread.as_json(), columns, rows, "nothing is unread", last="text")


def listen(
    follow: bool = flag(
        "--follow -f",
        "Continue until Ctrl-C. A message counts as read as soon as `listen` waits for the "
        "next one.",
    ),
    exec_: str | None = option(
        "--exec CMD",
        "Run this in a shell for each message, one after the other. The command finds the message "
        "as JSON in "
        "CAPSULE_MESSAGE and on its standard input, and the conversation in CAPSULE_ID, and "
        "CAPSULE_STORE.",
    ),
    ack: bool = flag(
        "--ack", "Acknowledge the messages: they count as read once they are printed."
    ),
    timeout: str | None = option(
        "--timeout DURATION", "Wait this long at most: 5 or 5s, 2m. Default: for ever."
    ),
    conversation: Conversation = None,
    topic: Topic = None,
    thread: Thread = None,
) -> None:
    """Print the unread messages, or wait for the next one. If none comes in time, print nothing and
    exit with 0.

    A line has the time, the conversation, the sender, the id and the text; with --json it is a JSON
    object. Without --ack the next `listen` prints them again.
    """
    wait_s = None if timeout is None else parse_duration(timeout, "--timeout", unit="s")
    end_at_once()
    with open_agent_store() as (store, agent):
        id = None if conversation is None else store.resolve(conversation)
        while True:
            wait = _WAIT_S if wait_s is None else wait_s
            batch = store.messages.listen(
                agent=agent, timeout_s=wait, conversation=id, topic=topic, thread=thread
            )
            for mail in batch.messages:
                _print_message(mail)
                if exec_ is not None:
                    variables = {"CAPSULE_ID": mail.conversation, "CAPSULE_STORE": store.root}
                    run_command_for(
                        mail.as_json(), exec_, "CAPSULE_MESSAGE", short={"content": ""}, **variables
                    )
                    # A command may take long. A signal may end this process meanwhile, and a message
                    # whose command has ended must not be printed again.
                    if ack:
                        acknowledged = {"conversation": mail.conversation, "message": mail.id}
                        store.messages.ack(agent=agent, topic=topic, thread=thread, **acknowledged)
            if ack and batch.messages:
                store.messages.ack(agent=agent, cursor=batch.cursor)
            is_last = not follow if batch.messages else wait_s is not None
            if is_last:
                return


def _print_message(mail: Mail) -> None:
    if global_options.json:
        print_json(mail.as_json(), line=True)
    elif in_terminal():
        from capsule_cli.commands.drawing import draw_message

        print_text(
            draw_message(
                mail.at, {**mail.as_json(), "role": mail.from_, "from": None}, mail.conversation
            )
            + "\n"
        )
    else:
        print_rows([(mail.timestamp, mail.conversation, mail.from_, mail.id, mail.content)])


def history(
    id: Id,
    limit: int = option("--limit -n N", "Print at most N messages.", 20, min=1),
    older_cursor: str | None = option(
        "--before CURSOR", "Print the page before this cursor: the `before` of a page."
    ),
    newer_cursor: str | None = option(
        "--after CURSOR", "Print the page after this cursor: the `after` of a page."
    ),
    topic: Topic = None,
    thread: Thread = None,
) -> None:
    """Print the newest messages of a conversation that the agent may read, the oldest first. It
    marks nothing read.

    --json prints one object: `messages`, and the cursors `before` and `after` of the pages on both
    sides.
    """
    refuse_if(
        older_cursor is not None and newer_cursor is not None,
        "give --before or --after, not both",
        "--before",
    )
    with open_agent_store() as (store, agent):
        page = store.messages.history(
            store.resolve(id),
            agent=agent,
            limit=limit,
            before=older_cursor,
            after=newer_cursor,
            topic=topic,
            thread=thread,
        )
    if global_options.json:
        print_json(page.as_json())
    for mail in page.messages if not global_options.json else ():
        _print_message(mail)


# -- mention ---------------------------------------------------------------------------------------


def mention_list(
    state: Literal["open", "unread", "read", "done", "all"] = option(
        "--state STATE", "Print those in this state; open: not done.", "open"
    ),
    kind: Literal["mention", "review", "action", "fyi"] | None = option(
        "--kind KIND", "Print those of this kind."
    ),
    limit: int = option("--limit -n N", "Print at most N.", 100, min=1),
) -> None:
    """List the messages that mention the agent, the latest first. It marks nothing read.

    A mention is read when its message is read, and done when the agent marks it as done.
    """
    with open_agent_store() as (store, _):
        mentions = store.messages.mentions(state=state, kind=kind, limit=limit)
    rows = [
        (
            mention.mail.id,
            mention.state,
            mention.mail.mention,
            mention.mail.from_,
            mention.mail.conversation,
            mention.mail.content,
        )
        for mention in mentions
    ]
    columns = ("id", "state", "kind", "from", "conversation", "text")
    print_list(as_json(mentions), columns, rows, "there is no such mention", last="text")


def mention_done(message: Message) -> None:
    """Mark a mention as done."""
    with open_agent_store() as (store, _):
        store.messages.done(message)
    print_answer({"message": message, "done": True}, f"{one_line(message)}: done")


def mention_reopen(message: Message) -> None:
    """Mark a mention as not done."""
    with open_agent_store() as (store, _):
        store.messages.reopen(message)
    print_answer({"message": message, "done": False}, f"{one_line(message)}: open")
