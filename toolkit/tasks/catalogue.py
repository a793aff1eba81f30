"""Names and parameters of reasoning-gym's tasks, so that a recipe is checked without importing that library.

Made from reasoning-gym 0.1.25; tests/test_tasks.py compares it with the installed one.
"""

from __future__ import annotations

import re

_TEXT = """
ab: length
acre: train
advanced_geometry: min_coord max_coord task_types
aiw: male_names female_names task_types task_type_weights max_entities
arc_1d: min_size max_size num_train
arc_agi: use_train use_eval board_format_opts rotations mirrors use_color_permutation shuffle_example_order
    rotations_weights mirrors_weights
base_conversion: min_base max_base min_value max_value
basic_arithmetic: min_terms max_terms min_digits max_digits operators allow_parentheses allow_negation
    format_style whitespace
bf: difficulty
binary_alternation: min_n max_n p_solvable
binary_matrix: min_n max_n p_zero
bitwise_arithmetic: difficulty
boxnet: min_row_num max_row_num min_column_num max_column_num min_box_num max_box_num colour_list
caesar_cipher: delimiter min_words max_words min_rotation max_rotation
calendar_arithmetic: year tasks offset_upper_bound leap_year_range
chain_sum: min_terms max_terms min_digits max_digits allow_negation
circuit_logic: min_terms max_terms min_inputs max_inputs neg_prob allow_reuse
codeio: input_prediction_probability difficulty
coin_flip: min_trials max_trials allow_exact allow_at_least
color_cube_rotation: min_rotations max_rotations
complex_arithmetic: min_real max_real min_imag max_imag operations operations_weights
composite: datasets
count_bits: min_n max_n
count_primes: min_n max_n
countdown: min_numbers max_numbers min_value max_value min_target max_target operators shuffle
course_schedule: min_num_courses max_num_courses min_num_prerequisites max_num_prerequisites
    min_cycle_length max_cycle_length p_solvable
cryptarithm: min_words max_words allow_leading_zero
decimal_arithmetic: min_num_decimal_places max_num_decimal_places min_terms max_terms precision
decimal_chain_sum: min_terms max_terms min_digits max_digits min_decimal_places max_decimal_places
    allow_negation
dice: num_dice max_dice_size
emoji_mystery: min_words_in_sentence max_words_in_sentence
family_relationships: min_family_size max_family_size male_names female_names
figlet_font: static_word static_font min_word_len max_word_len space_letters
fraction_simplification: min_value max_value min_factor max_factor styles
futoshiki: min_board_size max_board_size min_difficulty max_difficulty
game_of_life: grid_size_x grid_size_y filled_cells_weights filled_cells simulation_steps
game_of_life_halting: grid_size_x grid_size_y difficulty num_oscillators max_simulation_steps
gcd: min_numbers max_numbers min_value max_value
graph_color: num_colors min_num_vertices max_num_vertices edge_probability
group_anagrams: min_anagram_groups max_anagram_groups min_words_per_group max_words_per_group
gsm_symbolic: difficulty
intermediate_integration: problem_types problem_type_weights linear_lower_bound linear_upper_bound
    min_linear_degree max_linear_degree outer_constant_min outer_constant_max min_poly_degree
    max_poly_degree symbols operators
isomorphic_strings: min_string_length max_string_length p_solvable
jugs: num_jugs difficulty
kakurasu: min_rows max_rows min_cols max_cols p_ones max_retries
knight_swap: min_nodes max_nodes min_pieces max_pieces min_steps max_steps max_attempts impossible_ratio
knights_knaves: n_people depth_constraint width_constraint
largest_island: min_rows max_rows min_cols max_cols min_num_islands max_num_islands min_island_size
    max_island_size
lcm: min_numbers max_numbers min_value max_value
leg_counting: min_animals max_animals min_instances max_instances
letter_counting: min_words max_words
letter_jumble: min_word_len max_word_len min_words max_words min_corruption_level max_corruption_level
    consecutive_words
list_functions:
mahjong_puzzle: min_num_rounds max_num_rounds
manipulate_matrix: min_rows min_cols max_rows max_cols min_transforms max_transforms w_rotate w_hmirror
    w_vmirror w_dmirror w_cmirror w_map w_crop w_remove_every_nth_row w_remove_every_nth_col
    w_zero_divisible
maze: min_dist max_dist min_grid_size max_grid_size
mini_sudoku: min_empty max_empty
modulo_grid: size_x size_y max_divisor max_target max_holes
n_queens: n min_remove max_remove
needle_haystack: min_num_statements max_num_statements
number_filtering: min_numbers max_numbers min_decimals max_decimals min_value max_value
number_format: min_num_candidates max_num_candidates min_n max_n max_delta
number_sequence: min_terms max_terms min_value max_value max_complexity
number_sorting: min_numbers max_numbers min_decimals max_decimals min_value max_value
palindrome_generation: min_length max_length
palindrome_partitioning: min_string_len max_string_len min_substring_palindrome_len
    max_substring_palindrome_len
path_star: degree node_range min_path_length max_path_length reversed
polynomial_equations: min_terms max_terms min_value max_value min_degree max_degree operators
polynomial_multiplication: min_terms max_terms min_value max_value min_degree max_degree min_polynomials
    max_polynomials variables allow_cross_variable_product allow_multivariate_polynomials operators
pool_matrix: min_rows max_rows min_cols max_cols min_pool_size max_pool_size
power_function: min_base max_base min_exponent max_exponent
prime_factorization: min_value max_value
products: min_terms max_terms min_digits max_digits allow_negation
propositional_logic: min_vars max_vars min_statements max_statements min_complexity max_complexity
puzzle24: operators min_value max_value
quantum_lock: difficulty
ransom_note: min_note_length max_note_length min_magazine_length max_magazine_length p_solvable
rearc: min_examples max_examples diff_lb diff_ub board_format_opts rng_difficulty_ranges
    rng_difficulty_weights pso_difficulty_ranges pso_difficulty_weights
rectangle_count: max_rectangles width height
rotate_matrix: min_n max_n min_rotations max_rotations
rotten_oranges: min_n max_n p_oranges p_rotten
rubiks_cube: min_scramble_steps max_scramble_steps cube_size remove_ansi
rush_hour: min_moves max_moves
self_reference: difficulty
sentence_reordering: min_words_in_sentence max_words_in_sentence
shortest_path: min_rows max_rows min_cols max_cols p_blocked
simple_equations: min_terms max_terms min_value max_value operators operators_weights
simple_geometry: min_sides max_sides min_angle max_angle
simple_integration: min_terms max_terms min_degree max_degree min_bounds max_bounds operators symbols
sokoban: min_w min_h max_w max_h min_boxes max_boxes max_depth
spell_backward: min_word_len max_word_len data_file
spiral_matrix: min_n max_n
string_insertion: min_string_length max_string_length
string_manipulation: min_string_length max_string_length min_num_rules max_num_rules
string_splitting: min_initial_machines max_initial_machines max_iterations
string_synthesis: min_initial_blocks max_initial_blocks max_iterations
sudoku: min_empty max_empty
survo: min_board_size max_board_size min_empty max_empty min_num max_num
syllogism: allow_all allow_no allow_some allow_some_not invalid_ratio inversion_probability
time_intervals: min_time max_time max_time_difference_seconds min_date max_date max_date_difference_days
    task_types
tower_of_hanoi: min_disks max_disks min_pegs max_pegs visualize
tsumego: min_board_size max_board_size max_stones
word_ladder: min_word_length max_word_length min_chain_length max_chain_length
word_sequence_reversal: min_words max_words
word_sorting: min_words max_words min_word_length max_word_length transformation
zebra_puzzles: num_people num_characteristics
"""


def _parse(text: str) -> dict[str, tuple[str, ...]]:
    lines = re.sub(r"\n +", " ", text).strip().splitlines()
    return {name: tuple(rest.split()) for name, _, rest in (line.partition(":") for line in lines)}


PARAMETERS: dict[str, tuple[str, ...]] = _parse(_TEXT)
"""Per task, the parameters it takes (without `seed` and `size`, which are the toolkit's)."""
