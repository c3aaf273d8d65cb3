"""Words that say nothing about what is looked for, in the languages that people ask in most. Folded, as questions are.

Words of one language that mean something in another are left out ("comment", "main", "war"): what is common in the
skills weighs little anyway.
"""

from __future__ import annotations

from typing import Final

_ENGLISH: Final = (
    "a about actually add after again all also am an and any are around as at be been before being best better but by "
    "can could d did do does doing don every for from get gets getting give gives good got had has have having he help "
    "her here him his how i if in into is it its just kind know let lets like ll look lot m make makes making many may "
    "me might more most much my need needs new next no not of off on once only or other our out over own please put "
    "re really s same shall she should show so some somebody someone something such t tell than that the their them "
    "then there these they thing things think this those through time to too us use used using ve very want "
    "was way we were what when where which while who whom whose why will with within without would yet you your"
)
_GERMAN: Final = (
    "aber als am auch auf aus bei bis bitte brauche da damit dann das dass dein deine dem den denn der des die dies "
    "diese diesem diesen dieser dieses doch du durch ein eine einem einen einer eines er es fur gib habe haben hilf "
    "ich ihr im ist jetzt kann kannst kein keine konnen konntest mach mache machen man mein meine meinem meinen meiner "
    "mich mir mit mochte muss nach nicht noch nur oder ohne schon sehr sich sie sind soll sollte uber um und uns unser "
    "unsere unter viel vom von vor wann warum welche welchen welcher welches wenn wer werden wie wieder will wir wird "
    "wo zu zum zur"
)
_SPANISH: Final = (
    "algo ante aqui asi ayuda ayudame como con cual cuales cuando de del desde donde e el ella ellos en entre eres es "
    "esa esas ese eso esos esta estan estas este esto estos estoy favor ha hace hacer hacia hasta hay la las le les lo "
    "los mas me mi mis muy necesito ni nos nuestra nuestro o para pero por porque puede puedes puedo que quien quiero "
    "se ser si sin sobre son soy su sus tambien te tengo ti tiene tu tus un una unas uno unos y ya yo"
)
_FRENCH: Final = (
    "ai aide au aux avec ce ceci cela ces cet cette chez dans des dois donc dont du elle elles et etre eux fais fait "
    "faut il ils j je l leur leurs lui ma mes moi mon n ne nos notre nous ou par pas peut peux pour pourquoi puis qu "
    "quand quel quelle quelles quels qui quoi sa sans ses sont sous suis sur ta tes toi ton une veux voici voudrais "
    "vos votre vous"
)
_OTHERS: Final = (
    # Italian and Portuguese
    "ao aos che ci com cosa della delle dei degli di dos e ed eu gli isso isto ho mia mio na nas nel nella non nos o "
    "os nossa perche per piu pode posso quero quale questa queste questi questo sono um uma umas uns voce voglio "
    "vorrei "
    # Dutch
    "aan bij dat deze dit een en het hoe ik in is je kan kun met mij mijn naar niet of om op te uit van voor wat wil "
    "zijn "
    # Chinese and Japanese, as pairs of characters
    "一个 一下 什么 他们 以及 你们 可以 如何 帮我 我们 我想 我的 怎么 怎样 或者 把这 是否 有没 没有 现在 给我 能否 "
    "请帮 请把 这个 这些 那个 那些 需要 くだ ださ さい です ます して した する たい こと この その どの"
)
STOP_WORDS: Final = frozenset(" ".join((_ENGLISH, _GERMAN, _SPANISH, _FRENCH, _OTHERS)).split())
"""All of them."""

_COMMON: Final = (
    "able about across add added adds after again against ahead already also always another answer answers anyone "
    "anything apart around ask asked asking asks away back bad become before begin behind best better between big "
    "bring brings call called calls came can cannot case change changed changes changing clean clear close closed "
    "come comes coming could day days did different do does doing done during each early easy eight else empty end "
    "ends enough even every everybody everyone everything everywhere example fast feel feels few find finding finds "
    "finish finished first five fix fixes forever found four full gave get give gives go goes going good great half "
    "happen happened happens hard hate he hear heard hello help helps her here high his hold holds hope hour hours "
    "how hundred idea inside instead it its just keep keeping keeps kept kind knew know knows large last late later "
    "least leave left less let like likes line lines list listen lists little long look looking looks lot lots love "
    "low made make makes making man many matter may maybe me mean means meant might moment month more morning most "
    "move moves moving much must my name names need needs never new next nice night nine nobody nothing now number "
    "numbers often old once one only open opened opens other our outside over part parts people perhaps person "
    "piece place please point problem problems put puts question questions quick quickly ready real really reason "
    "receive right run running runs said same saw say saying says search second see seeing seen sees send sends "
    "sent set sets seven several shall she short should show showing shows side simple since six slow small "
    "somebody something sometimes soon sort speak start started starts stay still stop stops stuff sure take takes "
    "taking talk talking talks tell telling tells ten thanks that their them there these they thing think thinks "
    "third this those thought thousand three through time today together tomorrow too took tries true try "
    "trying turn turning turns twice two under until us use used user users uses wait waiting waits want wanted "
    "wants watch way ways we week weeks went what when where which who whole why will without woman word words "
    "work worked working works worse worst would wrong year years yesterday yet you young your"
)
COMMON_WORDS: Final = frozenset(_COMMON.split())
"""Words of everyday English that say little in a sentence, where others say more."""
