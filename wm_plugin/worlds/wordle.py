"""Wordle: find a hidden word of five letters in six guesses.

An observation is every guess so far with its feedback below it, how many guesses are left, and one status mark. `G` the letter is
right, `Y` it belongs elsewhere, `-` it does not occur (again); `>` your turn, `!` the episode is over. Any five letters are a
guess, so that nobody has to know our list of hidden words: 1,708 English ones, chosen for this package.
"""

import random
import zlib
from functools import lru_cache
from typing import Any

from wm_plugin.errors import UserError
from wm_plugin.worlds.kit.actions import ActionEnvironment
from wm_plugin.worlds.kit.protocol import Chooser, ToolCall, not_a_tool
from wm_plugin.worlds.kit.rows import check_level, prompt_and_budget, turn_limit

MAX_TURNS = 12
LEVELS = ("standard",)
GUESSES = 6
HELD_OUT = 256  # of `WORDS`
OPENING = "slate"  # the expert's first guess

INSTRUCTION = f"""Find a hidden English word of five letters with at most {GUESSES} guesses.
Call act with a guess; it shows every guess so far and, below each letter, how it fits: G the letter is right, Y the word has it
in another place, - the word does not have it, or not once more. The mark at the end is > while you may guess and ! when the
episode is over. Several guesses may be given at once, separated by semicolons. Anything but five letters from a to z is
invalid; it costs no guess, but you have {{turns}}.

"""


class WordleEnvironment(ActionEnvironment):
    """One episode: at most `GUESSES` guesses in at most `max_turns` turns; reward 1 for the word.

    A guess is effective when it is new.
    """

    irreversible = ("act",)

    def __init__(self) -> None:
        super().__init__()
        self._word = ""
        self._guesses: list[str] = []

    def reset(self, word: str, max_turns: int | None = None, **_: Any) -> str:
        """Hide `word` and return the first observation.

        `max_turns` is `MAX_TURNS` by default. A word that is not five letters from a to z is a `UserError`.
        """
        if not isinstance(word, str) or not self._is_action(word):
            raise UserError("A Wordle's column `word` needs five letters from a to z")
        self._word, self._guesses = word, []
        return self._start(turn_limit(max_turns, MAX_TURNS))

    @not_a_tool
    def world_context(self) -> str:
        """The hidden word."""
        return f"The hidden word is {self._word}." if self._word else ""

    def act(self, actions: str) -> str:
        """Guess the word.

        Args:
            actions: A guess of five letters, e.g. "crane", or several, separated by semicolons.

        Returns:
            All guesses, each with how its letters fit.
        """
        return self._act(actions)

    def _is_action(self, action: str) -> bool:
        return len(action) == 5 and all("a" <= letter <= "z" for letter in action)

    def _apply(self, action: str) -> bool:
        self._guesses.append(action)
        self.success = action == self._word
        self._ended = self.success or len(self._guesses) == GUESSES
        return True

    def _state(self) -> frozenset[str]:
        return frozenset(self._guesses)  # they determine all that the feedback says about the word

    def _observation(self) -> str:
        lines = [f"{' '.join(guess)}\n{' '.join(feedback(guess, self._word))}\n" for guess in self._guesses]
        return "".join(lines) + f"{GUESSES - len(self._guesses)} left{self._mark}"


def feedback(guess: str, word: str) -> str:
    """A mark for each letter of a guess.

    A letter has no more marks G and Y than the word has copies of it: right places first, then from left to right.
    """
    unused = [target for letter, target in zip(guess, word, strict=True) if letter != target]
    marks = ""
    for letter, target in zip(guess, word, strict=True):
        if letter == target:
            marks += "G"
        elif letter in unused:
            unused.remove(letter)
            marks += "Y"
        else:
            marks += "-"
    return marks


def dataset_rows(
    count: int, seed: int = 0, held_out: bool = False, level: str = "standard", max_turns: int = MAX_TURNS
) -> list[dict[str, Any]]:
    """Rows for a trainer: the prompt explains the task, and `reset` appends the first observation to it.

    There are 256 held-out words, each occurs once; the others are shuffled, and repeated as often as `count` needs.
    There is one level.
    """
    check_level(level, LEVELS, "Wordle")
    by_hash = sorted(WORDS, key=lambda word: (zlib.crc32(word.encode()), word))
    words = by_hash[:HELD_OUT] if held_out else by_hash[HELD_OUT:]
    if held_out and count > HELD_OUT:
        raise UserError(f"Wordle has {HELD_OUT} held-out words; write a count up to that, not {count}")
    rng = random.Random(seed * 2 + held_out)
    picks: list[str] = []
    while len(picks) < count:
        picks += rng.sample(words, len(words))
    prompt, more = prompt_and_budget(INSTRUCTION, max_turns, MAX_TURNS, "call")
    return [{"prompt": prompt, "word": word, "level": level, **more} for word in picks[:count]]


def expert() -> Chooser:
    """Knows `WORDS` and reads the feedback; guesses the word that best divides the candidates."""

    def choose(environment: WordleEnvironment) -> ToolCall:
        history = tuple((guess, feedback(guess, environment._word)) for guess in environment._guesses)
        return "act", {"actions": best_guess(history)}

    return choose


def wanderer(rng: random.Random) -> Chooser:
    """Guesses any word."""
    return lambda _: ("act", {"actions": rng.choice(WORDS)})


@lru_cache(maxsize=2**14)
def best_guess(history: tuple[tuple[str, str], ...]) -> str:
    """The guess with the most different feedbacks over the words that fit `history`, pairs of a guess and its feedback."""
    if not history:
        return OPENING
    candidates = [word for word in WORDS if all(feedback(guess, word) == marks for guess, marks in history)]
    if len(candidates) < 3:
        return candidates[0] if candidates else OPENING  # the word is not in `WORDS`
    guesses = (
        [*candidates, *WORDS] if len(candidates) <= 30 else candidates
    )  # a guess that cannot be right may divide better
    return max(guesses, key=lambda guess: len({feedback(guess, word) for word in candidates}))


_LIST = """\
abide abode abort about above acorn actor acute adapt admit adobe adopt adorn adult after again agent agile agree ahead aisle
alarm album alert algae alibi alike alive allow alloy alone along aloud alpha altar alter amaze amber amend ample amuse angel
anger angle angry ankle annex aorta apart apple apply apron arbor ardor arena argue arise armor aroma arrow ashen aside assay
asset atlas atone attic audio audit avail avert avoid await awake award aware awful axiom azure bacon badge badly bagel baker
balmy banjo barge baron basic basil basin basis batch bathe baton bayou beach beady beard beast beefy befit begin being belle
belly below bench beret berry bevel bingo birch birth bison black blade blame bland blank blast blaze bleak blend bless blimp
blind blink bliss bloat block blond bloom blown bluff blunt blurb blush board boast bongo bonus boost booth bored borne bossy
botch bough bound bowel brace braid brain brake brand brass brave brawl brawn bread break breed briar brick bride brief brine
bring brisk broad broil broke brook broom broth brown brunt brush budge buggy bugle build built bulge bumpy bunch bunny burly
burnt burst buyer cabin cable cacao cadet camel canal candy canoe canon caper cargo carry carve catch cater cause cease cedar
chafe chain chair chalk champ chant chaos chard charm chart chase chasm cheap cheat check cheek cheer chess chest chick chide
chief child chili chill chime chirp choir chord chose chunk churn cider cigar cinch civic civil clack claim clamp clang clash
clasp class clean clear cleat clerk click cliff climb cling cloak clock close cloth cloud clout clove clown cluck clump coach
coast cobra cocoa comet comic comma coral couch cough could count court coven cover covet cower crack craft cramp crane crank
crash crate crawl crazy creak cream creek creep crepe crest cried crimp crisp crook cross crowd crown crude cruel crumb crush
crust cubic cumin cupid curly curry curve cycle daily dairy daisy dance dandy datum dealt debit debut decal decay decor decoy
defer deity delay delta delve denim dense depot depth derby deter detox devil diary dicey digit diner dingy dirty disco ditch
ditto ditty diver dizzy dodge dogma doing dolly donor donut dopey doubt dough dowry dozen draft drain drama drank drape drawl
drawn dread dream dress dried drift drill drink drive droll drone droop drove drown druid dryer dryly dummy dunce dusty dwarf
dwell eager eagle early earth easel eaten ebony edify eerie egret eight eject elbow elder elect elite elope elude embed ember
emote empty enact enjoy enter entry envoy epoch epoxy equal equip erase erode error erupt essay evade event every evoke exact
exalt excel exile exist expel extol extra exult fable facet faint fairy faith false fancy farce fatal fault fauna favor feast
feign femur fence feral ferry fetch fever fewer fiber field fiery fifth fifty fight filet filmy filth final finch finer first
flail flair flake flame flank flash flask fleck fleet flesh flick flier fling flint flirt float flock flood floor flora floss
flour flout flown fluff fluid fluke flung flunk flush flute foamy focus foggy folly foray force forge forgo forth forty forum
found foyer frail frame fraud freak fresh fried frill frisk frond frost froth frown fruit fudge fully fungi funny fussy futon
fuzzy gaudy gauge gavel gawky geese genie genre ghost giant giddy girth given gizmo glade gland glare glass glaze gleam glean
glide glint gloat globe gloom glory glove glued glyph gnome golem golly goner gooey goose gorge gourd grace grade grail grain
grand grant grape graph grasp grass grate grave gravy graze great greed green greet grief grill grind gripe groan groin groom
group grout grove growl grown gruel gruff grunt guard guava guess guest guide guild guile guilt gully gusto gusty habit hairy
halve handy happy hardy harsh haste hasty hatch haunt haven hazel heady heard heart heavy hedge hefty heist hello hence heron
hinge hippo hoard hobby hoist homer honey honor horde horse hotel hound house hover human humid humor humus hunch hurry husky
hydra hyena icily icing ideal idiom idler igloo image impel imply inbox incur index inept inert infer ingot inlay inlet inner
input irate irony issue itchy ivory jaunt jazzy jelly jetty jewel joint joist joker jolly joust judge juice juicy jumbo jumpy
juror karma kayak kebab khaki kiosk kitty knack knead kneel knife knock knoll known koala krill label labor ladle lance lanky
lapel lapse large larva laser lasso latch later lathe laugh layer leach leafy leaky leapt learn lease leash least leave ledge
legal lemon leper level lever libel light lilac limit linen liner lingo lithe liver livid llama loath lobby local locus lodge
lofty logic loose lorry lotus lousy lover lower loyal lucid lucky lumpy lunar lunch lunge lurch lusty lyric macho madam magic
magma major maker mambo mange mango mania manic manly manor maple march marsh mason match maxim maybe mayor mealy meaty medal
media medic melee melon mercy merge merit merry metal meter micro midst might milky mimic mince miner minor minty minus mirth
miser mocha model modem mogul moist molar moldy money month moody moose moral mossy motel motif motor motto mound mount mourn
mouse mouth mover movie mucus muddy mulch mummy munch mural murky mushy music musty myrrh nadir naive nanny nasal nasty naval
needy nerve never newly niche niece nifty night ninja ninth noble nobly noise noisy nomad north notch novel nudge nurse nutty
nylon oaken oasis ocean oddly offer often olive ombre onion onset opera optic orbit order organ other otter ought ounce outer
ovate overt owing owner oxide ozone paint palsy panda panel panic paper parka parry parse party pasta paste patch patio patty
pause paver peace peach peaky pearl pecan pedal penal penny perch peril perky pesky pesto petal petty phase phone photo piano
piece piety piggy pilot pinch pinky pique pitch pithy pivot pixel pizza place plaid plain plait plane plank plant plate plaza
plead pleat plied plier pluck plumb plume plump plunk plush poach point poise poker polar polka polyp poppy porch poser posse
pouch pound pouty power prank prawn preen press price pride prime primo print prior prism privy prize probe prone prong proof
prose proud prove prowl proxy prune pudgy puffy pulpy pulse punch pupil puppy purse pushy quack quail quake qualm quart quash
queen quell query quest queue quick quiet quill quilt quirk quite quota quote radar radio rainy raise rally ranch range rapid
ratio ratty raven rayon razor reach react ready realm rebel reedy refer rehab reign relax relay relic remix renew repay repel
reply rerun reset resin retro revel revue rhino rhyme rider ridge rifle right rigid rinse ripen risen risky rival river roach
roast robin robot rocky rodeo roger rogue roomy roost rotor rouge rough round rouse route rover rowdy royal ruddy rugby ruler
rumor runny rural rusty saber sadly saggy saint salad salon salsa salty salve sandy sassy satin sauce sauna savor savvy scald
scale scalp scamp scant scare scarf scary scene scent scion scoff scold scone scoop scope score scorn scour scout scowl scrap
screw scrub scuff sedan seize sense sepia serum serve seven sever sewer shack shade shady shaft shake shaky shale shall shame
shank shape share shark sharp shave shawl shear sheen sheep sheer sheet shelf shell shied shift shine shiny shire shirt shoal
shock shone shook shoot shore short shout shove shown showy shred shrub shrug shuck shyly siege sieve sight sigma silky silly
since sinew singe siren sixth sixty skate skein skier skill skimp skirt skulk skull skunk slack slang slant slash slate sleek
sleep sleet slept slice slide slime slimy sling slink sloop slope slosh sloth slump slung slunk slurp slush smack small smart
smash smear smell smelt smile smirk smite smock smoke smoky snack snail snake snare snarl sneak sneer snide sniff snipe snoop
snore snort snout snowy snuff soapy sober soggy solar solid solve sonar sonic sooty sorry sound south space spade spare spark
spasm spawn speak spear speed spell spelt spend spent spice spicy spied spike spill spilt spine spiny spite splat split spoil
spoke spoof spook spool spoon spore sport spout spray spree sprig spunk spurn spurt squad squat squib squid stack staff stage
staid stain stair stake stale stalk stall stamp stand stank stare stark start state stead steak steal steam steel steep steer
stern stick stiff still stilt sting stink stint stock stoic stoke stole stomp stone stony stood stool stoop store stork storm
story stout stove strap straw stray strew strip strut stuck study stuff stump stung stunt style suave sugar suite sulky sully
sunny super surge surly sushi swami swamp swarm swash swath swear sweat sweep sweet swell swept swift swine swing swirl swish
swoon swoop sword synod syrup tabby table taboo tacky taffy taint taken tally talon tango tangy taper tapir tardy tarot taste
tasty taunt tawny teach tempo tenor tense tenth tepid terse thank theft their theme there thick thief thigh thing think third
thorn those three threw throw thumb thyme tiara tibia tidal tiger tight tilde timer timid tipsy titan tithe title toast today
toddy token tonal tonic tooth topaz topic torch torso total totem touch tough towel tower toxic toxin trace track trade trail
train trait trash trawl tread treat trend triad trial tribe trick tried tripe trite troll troop trope trout truce truck truly
trunk truss trust truth tryst tuber tulip tulle tumor tunic turbo tutor twang tweak tweed twice twine twirl twist tying udder
ulcer ultra umbra uncle under undue unfit unify union unite unity unlit until unwed upend upper upset urban usage usher usual
usurp utter vague valet valid valor value valve vapor vault vegan venom venue verge verse verve vexed vicar video vigor villa
vinyl viola viper viral virus visit visor vista vital vivid vixen vocal vodka vogue voice voila voter vouch vowel vying wacky
wafer wager wagon waist waive waltz warty waste watch water waver waxen weary weave wedge weigh weird whack whale wharf wheat
wheel where which whiff while whine whirl whisk white whole whose widen widow width wield wince winch windy wispy witty woken
woman woody wordy world worry worth would wound woven wrath wreak wreck wring wrist write wrong wrote wryly yacht yearn yeast
yield yodel young youth zebra zesty zonal
"""
WORDS = tuple(_LIST.split())
