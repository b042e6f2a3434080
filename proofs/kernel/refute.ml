(* Formulas and refutations as texts. Trusted for certificates of optimality: that [steps] reads the
   steps that are there. (What it reads wrongly can only be refused or be another right refutation:
   the formula does not come from the text.) *)

open Checker
open Numbers

let literal i =
  if i = 0 then failwith "a literal is not 0" else (i > 0, positive (abs i))

let int_of_literal (holds, v) = if holds then int_of_positive v else - (int_of_positive v)

(* One step per line: LITERALS 0 HINTS 0 *)
let step line =
  let words = List.filter (fun w -> w <> "") (String.split_on_char ' ' (String.trim line)) in
  let rec until_zero so_far = function
    | 0 :: rest -> (List.rev so_far, rest)
    | i :: rest -> until_zero (i :: so_far) rest
    | [] -> failwith "a step without its 0" in
  let clause, rest = until_zero [] (List.map int_of_string words) in
  let hints, rest = until_zero [] rest in
  if rest <> [] || List.exists (fun h -> h < 1) hints then failwith "not LITERALS 0 HINTS 0";
  (List.map literal clause, List.map positive hints)

let rec steps channel so_far =
  match input_line channel with
  | line -> steps channel (step line :: so_far)
  | exception End_of_file -> List.rev so_far

(* The formula of a question in the format of solvers. *)
let print_formula question =
  let formula = List.map (List.map int_of_literal) (formula_of question) in
  let most = List.fold_left (List.fold_left (fun m l -> max m (abs l))) 0 formula in
  Printf.printf "p cnf %d %d\n" most (List.length formula);
  List.iter
    (fun clause -> print_endline (String.concat " " (List.map string_of_int (clause @ [0]))))
    formula
