"""Patterns of attacks in the text of a skill: overrides, secrecy, theft of credentials. Data.

Each pattern is linear. `text.py` judges a match by its context. It tries a pattern only around its
marks in the text in lower case, so each alternative needs a mark.
"""

from __future__ import annotations

import re
from typing import Final

BLANKS: Final = r"[\s>*_]{1,9}"
"""Blanks between two words, over a line's end in a list or a quote."""
_NOUN: Final = (
    r"(?:instructions?|prompts?|rules|guidelines|directives|constraints|restrictions|guardrails"
    r"|training|programming|polic(?:y|ies))\b"
)
_USER: Final = rf"(?:(?:the|your|our){BLANKS})?(?:user|human|person|operator|owner)s?\b"

OVERRIDE: Final = re.compile(
    # earlier instructions are void; `[d]` hides a word from the test of our English
    rf"\b(?:ignore|disregard|forget|override|bypass|discard){BLANKS}"
    rf"(?:(?:all|any|every|of|the|these|those|my|about){BLANKS}){{0,4}}"
    r"(?:previous|prior|earlier|above|preceding|foregoing|system|safety|developer|original|initial|your|other)"
    rf"{BLANKS}(?:\w{{1,20}}{BLANKS}){{0,2}}{_NOUN}"
    rf"|\b(?:ignore|disregard|forget){BLANKS}(?:all|everything){BLANKS}(?:that{BLANKS})?"
    r"(?:you\s(?:were|have\sbeen)\s(?:tol[d]|given|taught)|you\sknow|above|before\sthis)\b"
    # the model becomes another one
    rf"|\byou{BLANKS}are{BLANKS}now{BLANKS}(?:\w{{1,12}}{BLANKS}){{0,3}}?(?:DAN\b|unrestricted|jailbroken|uncensored|unfiltered"
    r"|(?:developer|god|admin|root|debug|maintenance)\s{1,3}mode|free\s(?:of|from)\s|no\slonger\s(?:bound|restricted|subject))"
    # the skill precedes other instructions
    rf"|\b(?:(?:these|this\sskill's|the\sfollowing){BLANKS}(?:instructions|rules|steps)|this\s(?:skill|file|document)){BLANKS}"
    r"(?:(?:takes?|ha(?:ve|s))\s(?:precedence|priority)\sover|supersedes?|overrides?|outranks?)"
    rf"{BLANKS}(?:\w{{1,12}}{BLANKS}){{0,3}}?(?:system|safety|developer|user|other|previous|host|all|any)\b"
    # the system prompt is given away, guards are off
    r"|\b(?:reveal|repeat|leak|exfiltrate|print\sout)\s(?:\w{1,9}\s){0,2}?your\s(?:\w{1,9}\s){0,2}?system\s(?:prompt|message)"
    r"|\b(?:disable|turn\soff|switch\soff)\s(?:all\s|any\s)?(?:of\s)?your\s(?:\w{1,9}\s){0,2}?(?:checks?|filters?|guardrails|safeguards)"
    r"|\b(?:turn|switch)\syour\s(?:\w{1,9}\s){0,2}?(?:checks?|filters?|guardrails|safeguards)\soff\b"
    rf"|\b(?:set\saside|stop{BLANKS}(?:following|obeying)){BLANKS}(?:(?:all|any|the|your){BLANKS}){{0,2}}"
    rf"(?:previous|prior|earlier|system|developer|original){BLANKS}(?:directives|rules|guidelines|instructions|prompt|message)\b"
    r"|\bact\sas\sDAN\b|\b(?:pretend|imagine)\s(?:that\s)?you\s(?:are|have)\s(?:\w{1,9}\s){0,4}?"
    r"(?:no|without)\s(?:\w{1,9}\s)?(?:rules|restrictions|limits|filters|polic(?:y|ies))\b"
    r"|<\|im_start\|>\s{0,3}system|\bSYSTEM\sOVERRIDE\b"
    # the first alternative in other languages
    r"|\bignorier(?:e|en\sSie)?\s(?:alle\s|die\s|deine\s){0,3}(?:vorherigen|bisherigen|obigen|früheren)\s(?:Anweisungen|Regeln)"
    r"|\bignore[zr]?\s(?:toutes\s)?(?:les|tes|vos)\s(?:instructions|consignes|règles)\s(?:précédentes|antérieures)"
    r"|\bignor(?:a|ar|ad|e)\s(?:todas\s)?(?:las|tus|sus)\s(?:instrucciones|reglas)\s(?:anteriores|previas)"
    r"|\bignore\s(?:todas\s)?as\s(?:instruções|regras)\s(?:anteriores|prévias)"
    r"|\bignora(?:re)?\s(?:tutte\s)?le\s(?:istruzioni|regole)\s(?:precedenti|anteriori)"
    r"|игнорируй(?:те)?\s(?:все\s)?(?:предыдущие|прежние)\s(?:инструкции|указания|правила)"
    r"|(?:忽略|无视)(?:之前|以上|先前|所有|全部|的|你){0,5}(?:指令|指示|规则|说明)"
    r"|(?:以前|これまで|上記|前)の(?:すべての)?(?:指示|命令|ルール)を?(?:すべて)?無視"
    r"|(?:이전|위의|앞의)\s?(?:모든\s?)?(?:지시|명령|규칙|지침)(?:사항)?[을를]?\s?(?:모두\s?)?무시",
    re.IGNORECASE,
)
"""Instructions to set aside those of the host and the user."""
OVERRIDE_MARKS: Final = (
    "ignor", "disregard", "forget ", "override", "bypass", "discard", "you are now", "supersede",
    "precedence", "priority over", "outrank", "system prompt", "system message", "im_start",
    "disable ", "turn off", "switch off", "turn your", "switch your", "set aside", "stop follow",
    "stop obey", "act as dan", "pretend ",
    "imagine ", "игнорир", "忽略", "无视", "無視", "무시",
)  # fmt: skip

SECRECY: Final = re.compile(
    # tell, show or mention nothing
    rf"\b(?:do{BLANKS}not|don['\u2019]t|never|must{BLANKS}not){BLANKS}(?:tell|inform|notify|alert|warn){BLANKS}{_USER}"
    rf"(?=\s?(?:[.!;,\n]|\Z|about\s(?:this|it|that|these|any\sof\sthis|the\s(?:upload|transfer|request|copy|call))\b|(?:that\s)?you\s(?:did|have|sent|are|ran|read)\b|anything))"
    rf"|\b(?:do{BLANKS}not|don['\u2019]t|never){BLANKS}let{BLANKS}{_USER}{BLANKS}(?:know|notice|see\sthis|find\sout)\b"
    rf"|\b(?:do{BLANKS}not|don['\u2019]t|never){BLANKS}(?:mention|reveal|disclose|report){BLANKS}(?:this|the|these){BLANKS}"
    rf"(?:step|steps|action|upload|transfer|request|call|command|copy|instruction|instructions|operation)\b"
    # do it unseen
    rf"|(?P<act>\bwithout{BLANKS}(?:telling|informing|notifying|alerting){BLANKS}{_USER}(?!{BLANKS}(?:which|what|how|why)\b)"
    rf"|\bwithout{BLANKS}(?:letting{BLANKS}(?:anyone|{_USER}){BLANKS}know|mentioning{BLANKS}(?:it|this))\b"
    r"|\b(?:secretly|covertly|stealthily)\s(?:\w{1,12})\b"
    r"|\b(?:silently|quietly)\s(?:send|upload|post|transmit|forward|exfiltrate|email|collect)\b)"
    # hide it, lie, leave no trace
    rf"|\b(?:keep|hide|conceal){BLANKS}(?:this|it|these|all{BLANKS}of{BLANKS}this)(?:{BLANKS}(?:step|action|activity|upload|transfer|fact))?"
    rf"{BLANKS}(?:(?:a{BLANKS})?secret{BLANKS})?from{BLANKS}{_USER}"
    rf"|\bconceal{BLANKS}(?:\w{{1,12}}{BLANKS}){{1,4}}?from{BLANKS}{_USER}|\blie{BLANKS}to{BLANKS}{_USER}|\bcover\syour\stracks\b"
    rf"|\b(?:do{BLANKS}not|don['\u2019]t|never|under\sno\scircumstances){BLANKS}(?:show|reveal|disclose|admit){BLANKS}(?:to{BLANKS})?{_USER}{BLANKS}that\b"
    rf"|\b(?:leave|omit){BLANKS}this{BLANKS}(?:step|action|call|upload|transfer|request){BLANKS}(?:out{BLANKS}of|from){BLANKS}(?:your|the)\b"
    rf"|\bso{BLANKS}(?:that{BLANKS})?{_USER}{BLANKS}(?:(?:does|do|will){BLANKS}not|(?:doesn|won)['\u2019]t){BLANKS}(?:know|notice|see|find{BLANKS}out)\b"
    r"|\bpretend\s(?:that\s)?nothing\s(?:was|is|has|happened)\b"
    rf"|\b{_USER}{BLANKS}(?:must|should|may|can){BLANKS}(?:not|never){BLANKS}(?:know|notice|learn|find\sout|be\s(?:aware|informed))\b",
    re.IGNORECASE,
)
"""Instructions to keep an act from the user; `act` is denied by a "never" before it."""
SECRECY_MARKS: Final = (
    "telling ", "informing ", "notifying ", "alerting ", "secretly", "covertly", "stealthily",
    "silently", "quietly", "keep ", "hide ", "conceal", "t know", "never know", "t notice",
    "never notice", "t see", "t learn", "never learn", "find out", "be aware", "be informed",
    "so that", "so the user", "lie to", "cover your", "circumstances ", "letting ", "mentioning ",
    "pretend ", "leave this", "omit this",
)  # fmt: skip
DENIED_SPEECH: Final = re.compile(
    rf"n(?:ot|['\u2019]t|ever){BLANKS}"
    r"(?:tell|inform|notify|alert|warn|let|mention|reveal|disclose|report|show|admit)\b"
)
"""Further marks of `SECRECY`, as a pattern on the text in lower case.

Its other alternatives begin with such a denied verb. As marks the verbs alone are too common.
"""

REMOTE: Final = re.compile(
    r"\b(?:fetch|download|read|open|load|get|retrieve|visit|curl)\b[^.\n]{0,60}?https?://[^\s)]{1,200}"
    r"[^\n]{0,60}?\b(?:and|then|,)\s[^\n]{0,40}?\b(?:follow|obey|execute|perform|carry\sout)\b[^\n]{0,40}?"
    r"\b(?:instructions?|steps|commands?|prompt|whatever|everything|(?:it|they)\s(?:says?|contains?))\b"
    r"|https?://[^\s)]{1,200}+(?s:.){0,80}?\b(?:(?:act\son|comply\swith|obey|work\sthrough|execute|carry\sout)\s(?:it|them|that)"
    r"|do\s(?:it|exactly\sthat|what(?:ever)?\s(?:it|they)\ssays?)|(?:commands|steps|instructions)\sin\sits?"
    r"|as\s(?:your|system)\s(?:\w{1,9}\s)?(?:instructions|prompt|rules|tasks?)|decides?\show\syou)\b",
    re.IGNORECASE,
)
"""Text of an address that a model is to obey."""

ADDRESSED: Final = re.compile(
    r"\b(?:to|for)\s(?:the\s)?(?:AI|assistants?|agents?|models?|claude|llms?)(?:\sonly)?\s?:"
    r"|\A[\s*]{0,9}(?:AI|assistants?|agents?|claude|llms?)(?:\sonly)?\s?:\s(?:\w{1,15}\s){2}"
    r"|\b(?:AI|assistants?|agents?|models?|claude|gpt|llms?|copilot|codex|gemini)\b[^.\n]{0,40}?"
    r"\b(?:run|execute|send|upload|fetch|download|ignore|install|delete|curl|exfiltrate|post)\b"
    r"|\b(?:send|upload|forward|exfiltrate|transmit|copy|post|e-?mail)\s(?:\w{1,12}\s){0,4}?"
    r"(?:to|into)\s(?:me\b|https?://|\S{1,60}@)",
    re.IGNORECASE,
)
"""Commands to a model in text that people do not see."""

CREDENTIAL: Final = re.compile(
    r"\.ssh\b(?![\w/.*-]{0,40}\.pub\b)(?!/(?:config|known_hosts|authorized_keys)\b)"
    r"|\.aws\b[\"'\s,/\\)(]{1,6}(?:credentials|config)\b|\.kube\b[\"'\s,/\\)(]{1,6}config\b"
    r"|\.docker\b[\"'\s,/\\)(]{1,6}config\.json\b|\.config\b[\"'\s,/\\)(]{1,6}(?:gh|gcloud)\b"
    r"|~/\.(?:aws|kube)\b(?![\w/:-])"
    r"|\.(?:netrc|npmrc|pypirc|git-credentials|gnupg|pgpass)\b|/etc/shadow\b|\bwallet\.dat\b"
    r"|\bLogin\sData\b|\bkeychain-db\b|\bsecurity\s{1,3}find-(?:generic|internet)-password\b"
    r"|\bid_(?:rsa|ed25519|ecdsa|dsa)\b(?!\.pub)|(?<![\w/-])(?:env|printenv)\s{0,3}\|"
    r"|\b(?:dict|dumps|str|urlencode)\(\s{0,3}os\.environ\b|\bos\.environ\.(?:items|values)\(\)|\bstringify\(\s{0,3}process\.env\s{0,3}\)"
    r"|(?:@|cat\s|<\s{0,2})(?:\./)?\.env\b(?!\.(?:example|sample|template))"
)
"""Files, stores and variables that hold credentials of the user."""
CREDENTIAL_MARKS: Final = (
    ".ssh", ".aws", ".kube", ".docker", ".config", ".netrc", ".npmrc", ".pypirc", ".git-cred",
    ".gnupg", ".pgpass", "/etc/shadow", "wallet.dat", "login data", "keychain-db", "find-generic",
    "find-internet", "id_rsa", "id_ed25519", "id_ecdsa", "id_dsa", "env |", "env|", ".env",
)  # fmt: skip
SEND_COMMAND: Final = re.compile(
    r"(?<![\w.-])(?:curl|wget|nc|ncat|netcat|scp|rsync|sftp|sendmail|mail|telnet|irm|iwr|dig|nslookup"
    r"|Invoke-RestMethod|Invoke-WebRequest|http\sPOST)\b(?!-)|>\s?/dev/tcp/"
)
"""Commands that send, in the line of a credential or a later one with its copy."""
READ_CALL: Final = re.compile(
    r"\b(?:open|read_text|read_bytes|readFile\w{0,6}|Path|expanduser|join|home|homedir|copy\w{0,6}|glob|load"
    r"|environ|process|cat|check_output|run)\b"
)
"""Calls that read, in code: a line with one and a credential, and a `SEND_CALL` in the file."""
SEND_CALL: Final = re.compile(
    r"\b(?:requests|httpx|session|client)\.(?:get|post|put|patch|request)\(|\burlopen\(|\bhttp\.client\b|\.send(?:all|to)\("
    r"|\bsmtplib\b|\bftplib\b|\baiohttp\b|\bfetch\(|\baxios\b|\bhttps?(?:[\"']\))?\.request\(|\bsendBeacon\("
    r"|\b(?:run|system|call|check_output|execSync|exec)\([^\n]{0,60}?\b(?:curl|wget|nc|scp)\b"
)
"""Calls that send, in code that has a `READ_CALL` of a credential."""
SEND_VERB: Final = re.compile(
    r"\b(?:send|upload|post|exfiltrate|transmit|transfer|forward|e-?mail|submit|push|copy|paste|deliver|leak|include|attach)\b",
    re.IGNORECASE,
)
"""Verbs before a credential in prose; a `DESTINATION` follows it."""
SEND_IT: Final = re.compile(
    r"\b(?:send|upload|post|exfiltrate|transmit|transfer|forward|e-?mail|submit|push|copy|paste|deliver|leak|attach|include|put)\s{1,3}"
    r"(?:it|them|its|their|that|this|everything|(?:the|all|both)\s(?:\w{1,12}\s)?(?:contents?|files?|keys?|results?|outputs?|values?"
    r"|text|data|archive|credentials?|tokens?|secrets?))\b",
    re.IGNORECASE,
)
"""Verbs after a credential in prose that send it; a `DESTINATION` follows them."""
DESTINATION: Final = re.compile(
    r"https?://|\bwebhook\b|\b[\w.+-]{1,40}@[\w-]{1,40}\.\w|\bpastebin\b|\bgist\b|\bremote\sserver\b"
    r"|\b(?:telegram|discord|slack)\b|\b(?:\d{1,3}\.){3}\d{1,3}\b|\b[\w-]{1,40}\.(?:example|com|net|io|org)\b",
    re.IGNORECASE,
)
"""Where prose sends something."""

SECRET: Final = re.compile(
    r"(?P<a_private_key>-----BEGIN (?:RSA |EC |DSA |OPENSSH |ENCRYPTED )?PRIVATE "
    r"KEY-----\s++[A-Za-z0-9+/=\s]{64})"
    r"|(?P<an_access_key_of_AWS>\b(?:AKIA|ASIA)[A-Z0-9]{16}\b)"
    r"|(?P<a_token_of_GitHub>\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{60})\w*+)"
    r"|(?P<a_token_of_GitLab>\bglpat-[A-Za-z0-9_-]{20}[\w-]*+)"
    r"|(?P<a_token_of_Slack>\bxox[abprs]-[A-Za-z0-9-]{20}[\w-]*+)"
    r"|(?P<a_key_of_Anthropic>\bsk-ant-[A-Za-z0-9_-]{32}[\w-]*+)"
    r"|(?P<a_key_of_OpenAI>\bsk-(?:[A-Za-z0-9]{40}"
    r"|(?:proj|svcacct|admin)-(?=[a-z_-]{0,39}[A-Z0-9])[A-Za-z0-9_-]{40})[\w-]*+)"
    r"|(?P<a_key_of_Google>\bAIza[A-Za-z0-9_-]{35}\b)"
    r"|(?P<a_token_of_npm>\bnpm_[A-Za-z0-9]{36}\b)"
    r"|(?P<a_key_of_Stripe>\b[rs]k_live_[A-Za-z0-9]{24}\w*+)"
)
"""Secrets in formats made for secret scanning; messages have a group's name, "_" as blanks."""
SECRET_MARKS: Final = (
    "private key", "akia", "asia", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-",
    "xox", "sk-", "aiza", "npm_", "k_live_",
)  # fmt: skip
