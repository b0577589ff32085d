"""Which test shows what becomes of each attack and each bad input that this package must survive.

The numbers are those of the project's list of thirty attacks; `ASI01` to `ASI10` are the OWASP list for
agentic applications. A test that is renamed or removed makes this file fail, and so does an attack without a
test, unless it stands among the gaps.
"""

import ast
from functools import cache
from pathlib import Path

import pytest

from kestrel_lab.language.python_ast import (
    tree_of,
)  # `ast.parse` fails now and then while other threads parse, see there

TESTS = Path(__file__).parent

ATTACKS: dict[int, tuple[str, ...]] = {
    # a kill between an effect and its result
    1: ("runtime/resume/test_crash.py::test_killed_at_every_boundary_nothing_is_lost_or_done_twice",),
    # a power cut in a commit
    2: (
        "eventlog/test_power.py::test_a_power_cut_loses_nothing_acknowledged",
        "eventlog/test_power.py::test_less_synchronous_is_caught",
    ),
    # two processes resume one run
    3: (
        "runtime/resume/test_fencing.py::test_of_two_processes_that_resume_a_dead_run_one_wins",
        "runtime/resume/test_fencing.py::test_a_frozen_session_whose_run_was_taken_writes_nothing",
    ),
    # a full disk
    4: (
        "runtime/resume/test_disk_full.py::test_a_run_on_a_full_disk_goes_on_when_there_is_room",
        "eventlog/test_connection.py::test_no_room_loses_nothing_acknowledged",
    ),
    # hostile SQL through our connection
    5: (
        "eventlog/test_schema.py::test_our_connection_refuses_every_hostile_statement",
        "eventlog/test_schema.py::test_without_any_one_rule_something_escapes",
    ),
    # a log with flipped bits or an edited event
    6: (
        "eventlog/test_chain.py::test_no_flipped_bit_changes_an_event_unnoticed",
        "eventlog/test_chain.py::test_without_the_chain_flipped_bits_pass",
        "eventlog/test_chain.py::test_an_edit_is_found_and_named",
        "eventlog/test_chain.py::test_what_cannot_be_found_needs_the_hash_of_the_last_event",
        "runtime/resume/test_damaged.py::test_a_damaged_run_is_never_gone_on_with",
        "runtime/resume/test_damaged.py::test_a_damaged_run_is_shown_up_to_there",
        "runtime/resume/test_damaged.py::test_trusting_a_snapshot_is_caught",
    ),
    # a log on a network disk, or under a SQLite that damages it
    7: (
        "cli/test_barriers.py::test_a_log_on_a_network_disk_is_refused",
        "cli/test_barriers.py::test_a_sqlite_that_damages_logs_is_refused",
        "cli/test_barriers.py::test_a_barrier_that_does_not_hold_is_told",
        "cli/test_barriers.py::test_the_innermost_mount_says_what_a_place_is_on",
    ),
    # approvals: two clicks, changed arguments
    8: (
        "eventlog/test_store.py::test_a_decision_is_taken_once",
        "eventlog/test_store.py::test_four_processes_race_to_decide",
        "runtime/approvals/test_approvals.py::test_of_two_that_answer_the_first_stands",
        "runtime/approvals/test_approvals.py::test_an_edit_that_does_not_fit_is_asked_again",
    ),
    # keys, environments and kernels read by a command
    9: (
        "tools/test_hostile_commands.py::test_keys_and_kernels_cannot_be_read",
        "tools/test_sandbox.py::test_nothing_gets_out_of_bubblewrap",
        "tools/test_sandbox.py::test_the_probes_can_get_out",
    ),
    # a way out over the network or a socket
    10: (
        "tools/test_hostile_commands.py::test_nothing_gets_out_and_the_sandbox_says_so",
        "tools/test_sandbox.py::test_nothing_gets_out_of_bubblewrap",
        "tools/test_sandbox.py::test_what_gets_out_of_landlock_is_known",
    ),
    # daemons, fork bombs, floods, giant files
    11: (
        "tools/test_sandbox.py::test_a_timeout_leaves_no_daemon",
        "tools/test_sandbox.py::test_a_process_group_alone_leaves_daemons",
        "tools/test_sandbox.py::test_a_command_that_forks_without_end_is_stopped",
        "tools/test_shell.py::test_a_flood_is_stopped_in_bounded_memory",
        "tools/test_live_output.py::test_a_flood_is_told_in_few_bounded_pieces",
        "tools/test_hostile_commands.py::test_a_file_has_a_bound",
    ),
    # writing what somebody else will run
    12: (
        "tools/test_sandbox.py::test_nothing_gets_out_of_bubblewrap",
        "tools/test_sandbox.py::test_a_worktree_works_and_what_git_obeys_is_guarded",
        "tools/test_workspace.py::test_protected_directories_are_never_written",
        "tools/test_hostile_commands.py::test_a_change_to_a_file_that_runs_itself_is_shown_as_that",
    ),
    # paths that lead out
    13: (
        "tools/test_workspace.py::test_no_path_leads_out",
        "tools/test_workspace.py::test_odd_paths_are_refused_with_reasons",
        "tools/test_workspace.py::test_a_racing_symlink_swap_never_escapes_and_the_race_catches_a_mutant",
        "tools/test_work_folder.py::test_a_command_cannot_lie_itself_out",
    ),
    # a sandbox that is missing, forbidden or does not hold
    14: (
        "tools/test_sandbox.py::test_bubblewrap_that_does_not_hold_is_not_relied_on",
        "runtime/context/test_sandboxed_calls.py::test_without_a_sandbox_it_is_critical_and_asked",
        "runtime/context/test_sandboxed_calls.py::test_leave_in_a_sandbox_is_no_leave_without_one",
        "runtime/mcp/test_mcp_sandbox.py::test_where_no_level_can_be_had_a_server_is_not_started",
    ),
    # a page, an issue, a file, a tool's answer that gives orders, and a model that obeys
    15: (
        "runtime/security/test_containment.py::test_a_model_that_obeys_everything_does_no_harm",
        "runtime/security/test_containment.py::test_without_containment_nearly_all_of_it_happens",
        "runtime/security/test_containment.py::test_each_bug_lets_something_through",
    ),
    # an address made of private data
    16: (
        "runtime/security/test_containment.py::test_a_model_that_obeys_everything_does_no_harm",
        "runtime/security/test_containment.py::test_whoever_is_asked_is_told_where_each_argument_comes_from",
    ),
    # addresses that mean this machine or its network
    17: (
        "tools/test_web_addresses.py::test_every_address_that_is_not_of_the_public_internet_is_refused",
        "tools/test_web_addresses.py::test_a_url_with_two_meanings_has_none",
        "tools/test_web_asking.py::test_a_name_that_changes_its_address_is_not_followed",
        "tools/test_web_asking.py::test_a_mutant_that_checks_only_the_first_request_is_led_inside",
    ),
    # answers that are bombs, drips, or without end
    18: (
        "tools/test_web_asking.py::test_a_bomb_is_not_unpacked",
        "tools/test_web_asking.py::test_an_answer_has_its_time",
        "tools/test_web_asking.py::test_an_answer_has_its_size",
        "tools/test_web_asking.py::test_redirects_end_and_keys_stay_with_their_host",
    ),
    # MCP tools that change, hide words, or take another's name
    19: (
        "runtime/mcp/test_mcp.py::test_a_changed_description_needs_a_new_approval",
        "runtime/mcp/test_mcp.py::test_poisoned_tools_are_never_offered",
    ),
    # MCP servers that flood, babble, hang or die
    20: (
        "runtime/mcp/test_mcp.py::test_an_answer_too_long_fails_its_call_alone",
        "runtime/mcp/test_mcp.py::test_restarts_end_with_their_budget",
        "runtime/mcp/test_mcp.py::test_a_hanging_call_ends_in_time_and_is_taken_back",
        "runtime/mcp/test_mcp.py::test_a_server_that_does_not_start_is_named_and_blocks_nothing_else",
        "runtime/mcp/test_mcp.py::test_answers_are_harmless_text_and_requests_of_the_server_are_refused",
    ),
    # an installation that does more than it says, of a version nobody named, under a name that is nearly
    # another
    21: (
        "tools/test_mcp_catalogue.py::test_a_package_that_could_mean_something_else_is_not_installed",
        "tools/test_mcp_catalogue.py::test_a_name_that_is_nearly_a_known_one_is_told",
        "runtime/mcp/test_expansion.py::test_nothing_of_an_installation_can_be_changed_by_who_asks_or_who_answers",
    ),
    # files that are bombs: YAML, templates, conditions
    22: (
        "core/test_yamlfile.py::test_attacks_are_refused_fast",
        "core/test_template.py::test_other_template_languages_are_plain_text",
        "core/test_template.py::test_no_text_takes_long",
        "core/test_conditions.py::test_a_condition_is_bounded",
        "core/test_conditions.py::test_nothing_of_python_gets_in",
    ),
    # rows of the cache that somebody wrote
    23: (
        "middleware/test_cache.py::test_a_tampered_row_is_a_miss",
        "middleware/test_cache.py::test_a_tampered_key_is_not_unpickled",
    ),
    # text that is markup, an escape, or too much
    24: (
        "notebook/test_safety_in_browser.py::test_no_text_makes_an_element",
        "notebook/test_safety_in_browser.py::test_no_text_speaks_or_asks",
        "notebook/test_safety_in_browser.py::test_a_careless_panel_is_noticed",
        "views/test_renderings.py::test_foreign_text_is_never_markup",
        "views/test_renderings.py::test_what_is_saved_of_a_long_run_has_a_bound",
        "tools/test_live_output.py::test_pieces_together_are_the_whole",
    ),
    # other web pages that talk to the control server
    25: (
        "server/test_http_attacks.py::test_attacks_are_refused",
        "server/test_http_attacks.py::test_a_flood_of_wrong_tokens_is_cut_off_and_the_right_one_is_not",
        "server/test_http_attacks.py::test_a_decision_is_on_exactly_what_was_asked",
    ),
    # secrets in what tools say
    26: (
        "runtime/workspace/test_commands_in_runs.py::test_a_secret_is_in_no_log_view_or_answer",
        "core/test_redaction.py::test_a_secret_is_found_in_every_form",
        "core/test_redaction.py::test_pieces_hide_what_the_whole_hides",
        "core/test_redaction.py::test_without_waiting_a_cut_would_let_it_through",
        "tools/test_live_output.py::test_no_piece_holds_a_part_of_a_secret",
        "tools/test_live_output.py::test_a_cut_answer_ends_within_no_secret",
    ),
    # an interrupt at any moment
    27: (
        "runtime/test_life.py::test_stopped_at_any_moment_it_is_cancelled",
        "notebook/test_waiting.py::test_stopping_cancels_the_work_and_says_so",
        "tools/test_shell.py::test_cancelling_kills_the_whole_group",
        "tools/test_sandbox.py::test_nothing_outlives_a_killed_session",
        "runtime/mcp/test_mcp.py::test_no_server_outlives_its_process",
        "runtime/resume/test_fencing.py::test_a_run_left_by_an_error_is_free_for_another_session_of_the_process",
    ),
    # loops and budgets
    28: (
        "runtime/test_life.py::test_a_limit_ends_the_run",
        "runtime/execution/test_plans.py::test_limits_are_those_of_the_whole_run",
        "runtime/context/test_allowance.py::test_turns_are_never_more_than_the_limit",
        "runtime/context/test_allowance.py::test_a_turn_counts_from_its_reservation_on",
        "runtime/context/test_allowance.py::test_money_passes_the_limit_by_one_call_at_most",
        "runtime/context/test_allowance.py::test_without_reservation_the_limits_are_passed",
    ),
    # memory that an attacker wrote
    29: (
        "memory/test_memory.py::test_what_guides_is_never_tainted",
        "memory/test_memory.py::test_what_is_not_trusted_overrules_nothing_that_is",
    ),
    # text that claims an authority
    30: ("runtime/workspace/test_commands_in_runs.py::test_words_of_a_tool_or_a_model_approve_nothing",),
}

GAPS: dict[int, str] = {}
"""Attacks without a test here, and of what they are."""

OWASP: dict[str, tuple[int, ...]] = {
    "ASI01 goal hijack": (24, 30),
    "ASI02 tool misuse": (8, 12, 13),
    "ASI03 identity and privilege abuse": (8, 30),
    "ASI04 supply chain": (19, 20),
    "ASI05 unexpected code execution": (9, 10, 11, 12, 14, 22, 23),
    "ASI06 memory and context poisoning": (29,),
    "ASI07 insecure communication between agents": (30,),
    "ASI08 cascading failures": (1, 3, 20, 28),
    "ASI09 exploitation of a person's trust": (8, 12, 24),
    "ASI10 rogue agents": (11, 27, 28),
}


@cache
def named_in(path: str) -> frozenset[str]:
    """The test functions that a file defines."""
    file = TESTS / path
    if not file.is_file():
        return frozenset()
    return frozenset(
        node.name
        for node in tree_of(file.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    )


def unfounded(claims: dict[int, tuple[str, ...]], gaps: dict[int, str]) -> list[str]:
    """What of the claims does not hold: attacks without a test, tests that are not there, gaps that are
    none.
    """
    problems = [
        f"attack {number} has neither a test nor a gap"
        for number in range(1, 31)
        if not claims.get(number) and number not in gaps
    ]
    problems += [f"attack {number} is a gap and has tests" for number in claims.keys() & gaps.keys()]
    problems += [
        f"there is no attack {number}" for number in (claims.keys() | gaps.keys()) - set(range(1, 31))
    ]
    for number, tests in claims.items():
        for name in tests:
            path, _, function = name.partition("::")
            if function not in named_in(path):
                problems.append(f"attack {number}: there is no test {name}")
    return problems


def test_every_attack_names_tests_that_exist() -> None:
    """Each of the thirty has a test in this suite, or stands among the gaps, with the reason."""
    assert unfounded(ATTACKS, GAPS) == []


@pytest.mark.parametrize(
    ("claims", "gaps", "said"),
    [
        ({**ATTACKS, 9: ()}, GAPS, "attack 9 has neither a test nor a gap"),
        (
            {**ATTACKS, 9: ("tools/test_sandbox.py::test_gone",)},
            GAPS,
            "attack 9: there is no test tools/test_sandbox.py::test_gone",
        ),
        (
            {**ATTACKS, 9: ("tools/test_gone.py::test_gone",)},
            GAPS,
            "attack 9: there is no test tools/test_gone.py::test_gone",
        ),
        (ATTACKS, {**GAPS, 9: "?"}, "attack 9 is a gap and has tests"),
        (ATTACKS, {**GAPS, 31: "?"}, "there is no attack 31"),
    ],
)
def test_a_claim_without_ground_is_noticed(
    claims: dict[int, tuple[str, ...]], gaps: dict[int, str], said: str
) -> None:
    """The mutants: a test that is gone, an attack that was forgotten, a gap that is none."""
    assert said in unfounded(claims, gaps)


def test_every_item_of_owasp_leads_to_tests() -> None:
    """ASI01 to ASI10 each name attacks that have tests."""
    assert [name[:5] for name in OWASP] == [f"ASI{number:02}" for number in range(1, 11)]
    assert [
        name for name, numbers in OWASP.items() if not any(ATTACKS.get(number) for number in numbers)
    ] == []
