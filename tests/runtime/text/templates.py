"""Chat templates of our own, each around one feature that templates of real models use."""

ROLES = [
    {"role": "system", "content": " Be brief. \n"},
    {"role": "user", "content": "Hi <b>there</b> 'q' \"d\" 日本 👍🏽"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello!"},
    {"role": "user", "content": "Weather?"},
]
ARGUMENTS = {
    "city": "Paris é",
    "days": [1, 2.0, 1e20, 1e-7],
    "deep": {"b": True, "a": None},
    "zero": [],
}
CALL = {
    "id": "call00001",
    "type": "function",
    "function": {"name": "get_weather", "arguments": ARGUMENTS},
}
TOOL_TURNS = [
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call00001", "name": "get_weather", "content": '{"t": 20}'},
]
MISSING_CONTENT = [TOOL_TURNS[0], {"role": "assistant", "tool_calls": [CALL]}, TOOL_TURNS[2]]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Says <the> 'weather' & \"more\" é\u2028",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "items": {"type": "array", "items": {"type": ["integer", "null"]}},
                    "unit": {"enum": ["c", "f"], "default": "c"},
                },
                "required": ["city"],
            },
        },
    }
]
VALUES = {
    "s": "Hello, Wörld",
    "l": [3, 1, 2],
    "d": {"b": 1, "a": [1, "x'y", None, True, 1.5], "items": [9]},
    "rows": [{"a": 2, "n": "x"}, {"a": 1, "n": "y"}, {"n": "z"}],
    "i": 42,
    "f": 1.0,
    "none": None,
    "yes": True,
    "numbers": [1.5, 1e20, 1e-7, 1e16, 123456789012345.0, -0.0, 18446744073709551615],
    "quoted": 'it\'s "q" \\ \n\t\x01\u200b é',
    "padded": "  pad \n",
}

CASES = []


def case(name, template, messages=ROLES, tools=None, as_jinja_file=True, **kwargs):
    CASES.append(
        {
            "name": name,
            "template": template,
            "messages": messages,
            "tools": tools,
            "as_jinja_file": as_jinja_file,
            "kwargs": kwargs,
        }
    )


CHATML = (
    "{%- for message in messages %}\n"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}\n"
)
case("chatml", CHATML)
case("no_generation_prompt", CHATML, add_generation_prompt=False)
case("in_tokenizer_config", CHATML, as_jinja_file=False)
case(
    "special_tokens",
    "{{ bos_token }}|{{ eos_token }}|{{ unk_token }}|{{ pad_token }}|{{ pad_token is defined }}",
)
case("special_token_by_kwarg", "{{ bos_token }}", bos_token="<other>")
NAMED = {"default": "plain {{ messages[0].content }}", "tool_use": "{{ tools[0].function.name }}"}
case("named_default", NAMED)
case("named_tool_use", NAMED, tools=TOOLS)
case("named_in_config", NAMED, as_jinja_file=False)
case("named_tool_use_in_config", NAMED, tools=TOOLS, as_jinja_file=False)

THINKING = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: "
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
case("thinking_default", THINKING)
case("thinking_off", THINKING, enable_thinking=False)
case("thinking_on_and_unknown_kwarg", THINKING, enable_thinking=True, no_such_switch={"a": [1]})
case(
    "reasoning_names",
    "{% for m in messages %}{{ m.reasoning_content }}|{{ m.thinking }}|{{ m.reasoning }};{% endfor %}",
    [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning": "r1"},
        {"role": "assistant", "content": "b", "reasoning_content": "r2", "thinking": "r3"},
    ],
)

CALLS = (
    "{% for message in messages %}<{{ message.role }}>"
    "{% if message.content is defined %}{{ message.content }}{% else %}(none){% endif %}"
    "{% for call in message.tool_calls %}<tool_call>{{ call.function | tojson }}</tool_call>"
    "{{ call.function.arguments }}{% endfor %}{% endfor %}"
)
case("null_content", CALLS, TOOL_TURNS, TOOLS)
case("missing_content", CALLS, MISSING_CONTENT, TOOLS)
case(
    "tools",
    "{% if tools %}{% for tool in tools %}{{ tool | tojson }}\n{{ tool | tojson(indent=4) }}\n{{ tool }}\n"
    "{% for name, spec in tool.function.parameters.properties.items() %}{{ name }}={{ spec.get('items') }};{% endfor %}"
    "{% endfor %}{% else %}no tools{% endif %}{{ tools is none }}{{ documents is none }}",
    tools=TOOLS,
)
case(
    "no_tools",
    "{{ tools is none }}{{ tools is not none }}{{ 'tools' if tools else 'none' }}{{ tools }}",
)
case(
    "no_tools_is_iterable",
    "{% if tools is iterable and tools | length > 0 %}some{% else %}none{% endif %}",
)
case("empty_tools", "{{ tools is none }}{{ tools is iterable }}{{ tools | length }}", tools=[])

case(
    "loop_controls",
    "{% for v in range(10) %}{% if v == 1 %}{% continue %}{% endif %}{{ v }}{% if v == 4 %}{% break %}{% endif %}"
    "{% endfor %}",
)
case(
    "loop_variable",
    "{% for v in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}"
    "{{ loop.last }}{{ loop.length }}<{{ loop.previtem }}|{{ loop.nextitem }}>{{ loop.cycle('a', 'b') }}"
    "{{ loop.changed(v) }}{{ loop.depth }};{% else %}never{% endfor %}{% for v in [] %}{% else %}empty{% endfor %}"
    "{% for v in l if v > 1 %}{{ v }}{{ loop.index }}{% endfor %}"
    "{% for x in [1, [2, [3]]] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}{% endif %}{% endfor %}"
    "{% for m in messages %}{% if loop.previtem is defined and loop.previtem.role != m.role %}!{% endif %}{% endfor %}",
    **VALUES,
)
case(
    "namespace",
    "{% set ns = namespace(sum=0, names=[]) %}{% for v in l %}{% set ns.sum = ns.sum + v %}"
    "{% set ns.names = ns.names + [v | string] %}{% endfor %}{{ ns.sum }}{{ ns.names }}{{ ns.nothing }}"
    "{% set v = 'outer' %}{% for x in l %}{% set v = x %}{% endfor %}{{ v }}",
    **VALUES,
)
case(
    "macros",
    "{% macro m(a, b='d', c=none) %}<{{ a }}{{ b }}{{ c }}>{% endmacro %}{{ m(1) }}{{ m(1, 2, 3) }}{{ m(b=5, a=4) }}"
    "{{ m() | trim ~ m.name }}{% macro wrap(x) %}[{{ caller(x) }}]{% endmacro %}{% call(y) wrap(3) %}in {{ y }}"
    "{% endcall %}{% macro down(n) %}{% if n > 0 %}{{ n }}{{ down(n - 1) }}{% endif %}{% endmacro %}{{ down(20) }}"
    "{% macro late() %}{{ outer }}{% endmacro %}{% set outer = 'o' %}{{ late() }}",
)
case(
    "slices",
    "{{ s[::-1] }}{{ l[::-1] }}{{ l[1:] }}{{ s[:3] }}{{ s[-3:] }}{{ l[-1] }}{{ s[0] }}{{ l[:-1] }}{{ l[5:] }}"
    "{{ s[1:-1:2] }}{{ l[::2] }}{% for m in messages[::-1] %}{{ m.role }}{% endfor %}{{ messages[1:] | length }}"
    "{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{{ rest[0].role }}{% endif %}",
    **VALUES,
)
case(
    "string_methods",
    "{{ 'a b  c'.split() }}{{ s.split(',') }}{{ 'a,b,c'.split(',', 1) }}{{ ' a b '.split(' ') }}"
    "{{ padded.strip() }}|{{ padded.lstrip() }}|{{ padded.rstrip() }}|{{ 'xxaxx'.strip('x') }}{{ 'abcab'.lstrip('ab') }}"
    "{{ s.startswith('He') }}{{ s.endswith(('x', 'ld')) }}{{ s.find('o') }}{{ s.find('zz') }}{{ s.count('l') }}"
    "{{ s.upper() }}{{ s.lower() }}{{ s.title() }}{{ 'ab'.capitalize() }}{{ s.replace('l', 'L') }}"
    "{{ s.replace('l', '', 1) }}{{ ','.join(['a', 'b']) }}{{ '{} {x}'.format(1, x='y') }}{{ '12'.isdigit() }}"
    "{{ 'a-b-c'.partition('-') }}{{ 'a-b-c'.rpartition('-') }}{{ 'ab'.partition('-') }}{{ 'ab'.rpartition('-') }}"
    "{{ 'foobar'.removeprefix('foo') }}{{ 'foobar'.removesuffix('bar') }}{{ 'foobar'.removesuffix('x') }}"
    "{{ 'aXbXc'.rsplit('X', 1) }}{{ 'aXbXc'.rsplit('X') }}{{ 'a\\nb\\n'.splitlines() }}"
    "{{ messages[2].content.split('</think>')[-1].lstrip('\\n') }}",
    **VALUES,
)
case(
    "dicts",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }}{% endfor %}"
    "{% for k, v in d | items %}{{ k }}{% endfor %}{% for k, v in d | dictsort %}{{ k }}{% endfor %}{{ d.keys() | list }}"
    "{{ d.values() | list }}{{ d.items() | list }}{{ d.get('a') }}{{ d.get('z') }}{{ d.get('z', 5) }}{{ 'b' in d }}"
    "{{ 'z' not in d }}{{ d['b'] }}{{ d.zzz }}{{ d['zzz'] is defined }}{{ d | length }}{{ dict(d, c=3) }}",
    **VALUES,
)
case(
    "tests",
    "{{ s is string }}{{ l is string }}{{ d is mapping }}{{ l is mapping }}{{ l is iterable }}{{ s is iterable }}"
    "{{ none is iterable }}{{ i is iterable }}{{ nope is iterable }}{{ s is sequence }}{{ l is sequence }}"
    "{{ d is sequence }}{{ none is sequence }}{{ i is number }}{{ yes is number }}{{ i is integer }}{{ f is float }}"
    "{{ yes is boolean }}{{ yes is true }}{{ none is none }}{{ nope is none }}{{ nope is undefined }}{{ i is odd }}"
    "{{ i is divisibleby 7 }}{{ i is eq 42 }}{{ 'abc' is lower }}{{ 2 is in l }}{{ i is not none and i is not string }}",
    **VALUES,
)
case(
    "filters",
    "{{ rows | map(attribute='n') | join('-') }}{{ rows | selectattr('a', 'defined') | list }}"
    "{{ rows | rejectattr('a', 'defined') | list }}{{ rows | selectattr('n', 'equalto', 'x') | map(attribute='a') | list }}"
    "{{ rows | selectattr('n', 'in', ['x', 'y']) | list | length }}{{ l | map('string') | join('+') }}{{ l | sort }}"
    "{{ l | reverse | list }}{{ l | first }}{{ l | last }}{{ l | sum }}{{ l | min }}{{ l | max }}{{ l | unique | list }}"
    "{{ nope | default('x') }}{{ none | default('x') }}{{ none | default('x', true) }}{{ '' | default('y', boolean=True) }}"
    "{{ nope | d(default_value='z') }}{{ padded | trim }}|{{ padded | length }}{{ s | upper }}{{ s | replace('l', 'L') }}"
    "{{ 'a\\nb\\n\\nc' | indent(2, true) }}{{ 'a\\nb' | indent }}{{ '7' | int }}{{ 'x' | int }}{{ 'x' | int(5) }}"
    "{{ 'x' | int(default=6) }}{{ '0x1F' | int(base=16) }}{{ '1.5' | float }}{{ 'x' | float }}{{ 'x' | float(default=2.5) }}"
    "{{ 2.567 | round(2) }}{{ -3 | abs }}{{ d.a | map('string') | list }}{{ '%s:%d' | format('a', 3) }}"
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ (messages | last).content }}",
    **VALUES,
)
case(
    "tojson",
    "{{ d | tojson }}{{ quoted | tojson }}{{ numbers | tojson }}{{ 'é<>&😀' | tojson }}{{ 'é😀' | tojson(ensure_ascii=true) }}"
    "{{ d | tojson(indent=2) }}{{ {} | tojson(indent=2) }}{{ [] | tojson(indent=4) }}{{ d | tojson(indent='--') }}"
    "{{ d | tojson(separators=(',', ':')) }}{{ d | tojson(sort_keys=true) }}{{ {1: 2, 'a': none, true: 1.5} | tojson }}"
    "{{ d | tojson(false, 2) }}{{ d | tojson(indent=none) }}{{ (1, 2) | tojson }}{{ none | tojson }}{{ yes | tojson }}"
    "{{ d | tojson(indent=0) }}",
    **VALUES,
)
case(
    "printing",
    "{{ s }}{{ l }}{{ d }}{{ i }}{{ f }}{{ none }}{{ yes }}{{ [quoted] }}{{ numbers }}{{ (1,) }}{{ (1, 'a') }}{{ () }}"
    "{{ {'a': quoted, 1: 2} }}{{ nope }}{{ 1e20 }}{{ 0.1 + 0.2 }}{{ 1.0 }}{{ 1e-7 }}{{ True }}{{ False }}{{ None }}"
    "{{ 'x' ~ nope ~ none ~ yes ~ 1.0 ~ 1 }}{{ f | string }}{{ d | string }}{{ none | string }}",
    **VALUES,
)
case(
    "expressions",
    "{{ 7 / 2 }}{{ 6 / 2 }}{{ 7 // 2 }}{{ -7 // 2 }}{{ -7 % 3 }}{{ 2 ** 3 }}{{ 'ab' * 3 }}{{ [1] * 2 }}{{ l + [4] }}"
    "{{ 'ell' in s }}{{ 1 in l }}{{ 'a' in nope }}{{ 1 < 2 < 3 }}{{ 1 == 1.0 }}{{ '1' == 1 }}{{ (1, 2) == [1, 2] }}"
    "{{ (yes and s) or 'n' }}{{ '' or 'dflt' }}{{ not s }}{{ 'y' if yes else 'n' }}{{ ('y' if none) is defined }}"
    "{{ 'a' 'b' }}{{ '\\u2581\\x41\\t' }}{{ 1_000 }}{{ 1e3 }}{{ 5 | string + 'x' }}{{ none == nope }}"
    "{% set x, y = (1, 2) %}{{ x }}{{ y }}{% set block %}b {{ i }}{% endset %}[{{ block }}]"
    "{% set up | upper %}abc{% endset %}{{ up }}{% filter upper %}f{% endfilter %}{% with a = 1 %}{{ a }}{% endwith %}"
    "{% raw %}{{ x }}{% endraw %}{# comment #}{% if none %}a{% elif i %}b{% else %}c{% endif %}{{ range(1, 7, 2) | list }}",
    **VALUES,
)
case(
    "whitespace",
    "  {% if yes %}\n    line\n  {% endif %}\nafter\n{%+ if yes %}plus{% endif +%}\n{{ i }}\n{# c #}\nx\n"
    "{{ i }}   \n   {%- if yes %}  \n y {% endif -%}\n\n z\n  {# c #}  \n x\n{% for x in l %}\n{{ x }}\n{% endfor %}\n"
    "\t{%- set a = 1 -%}\t\n{{ a }}\n  {{- i }}\n{% set b -%}\n  q\n{%- endset %}\n[{{ b }}]x {#- c -#} y\n\n",
    **VALUES,
)
case("line_ends", "a\r\n{% if true %}\r\nb\rc\r\n{% endif %}\r\n{{ 'd\r\ne' }}\r\n")
case(
    "generation_tag",
    "{% for m in messages %}\n{% if m.role == 'assistant' %}\n  {%- generation -%}  {{ m.content }}{% set x = 1 %}"
    "  {%- endgeneration -%}  \n{% else %}{{ m.role }}{% generation %}\n{% endgeneration %}\n{% endif %}{% endfor %}"
    "{{ x is defined }}{% set generation = 'g' %}{{ generation }}",
)
case("strftime_parts", "{{ strftime_now('%%') }}{{ strftime_now('%z%Z') }}{{ strftime_now('') }}")

case("undefined_attribute", "a\n\n{{ nope.attribute }}")
case(
    "none_attribute_is_undefined",
    "{{ none.foo is defined }}{{ messages[0].foo is defined }}",
    **VALUES,
)
case("undefined_plus_text", "{{ nope + 'x' }}")
case("text_plus_number", "{{ 'a' + 1 }}")
case("undefined_to_json", "{{ nope | tojson }}")
case("unknown_method", "{{ messages.append(1) }}")
case("unknown_filter", "line 1\n{{ 'a' | no_such_filter }}")
case("raise_text", "{{ raise_exception('System role not supported') }}")
case(
    "raise_made_up_text",
    "{% for m in messages %}{{ raise_exception('Bad role: ' ~ m.role ~ ' \"é\"') }}{% endfor %}",
)
case(
    "raise_in_macro",
    "{% macro m() %}{{ raise_exception('from a macro') }}{% endmacro %}x{{ m() | upper }}",
)
case(
    "raise_in_unused_branch",
    "{% if messages | length > 99 %}{{ raise_exception('too long') }}{% endif %}ok",
)
